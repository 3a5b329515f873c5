"""CQL statements as parsed, one dataclass each. Names are in lower case unless quoted; nothing is resolved yet.

`keyspace` is None if the statement names none: then the keyspace of the connection applies.
"""

import enum
from dataclasses import dataclass

import msgspec

from ebla.cql.parse.terms import BindMarker, ColumnName, Term
from ebla.model.cql_types import CqlType
from ebla.wire.cql.frames import BatchKind


class TableName(msgspec.Struct, frozen=True):
    keyspace: str | None
    name: str


@dataclass(frozen=True, slots=True)
class UsingClause:
    timestamp: Term | None = None
    ttl: Term | None = None
    timeout: Term | None = None


NO_USING_CLAUSE = UsingClause()


# ---- conditions


class Operator(enum.StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    IN = "IN"
    CONTAINS = "CONTAINS"
    CONTAINS_KEY = "CONTAINS KEY"
    LIKE = "LIKE"
    IS_NOT_NULL = "IS NOT NULL"


class ColumnRelation(msgspec.Struct, frozen=True, kw_only=True):
    """`column op value`. For IN: `values`, or one marker for the whole list in `value`."""

    column: str
    operator: Operator
    value: Term | None = None
    values: tuple[Term, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRelation:
    """`column[key] op value`."""

    column: str
    key: Term
    operator: Operator
    value: Term


@dataclass(frozen=True, slots=True)
class TokenRelation:
    """`token(a, b) op value`."""

    columns: tuple[str, ...]
    operator: Operator
    value: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiColumnRelation:
    """`(a, b) op (x, y)`, also with IN, and with one marker for a whole tuple or list of tuples."""

    columns: tuple[str, ...]
    operator: Operator
    value: Term | None = None
    values: tuple[Term, ...] | None = None


Relation = ColumnRelation | ElementRelation | TokenRelation | MultiColumnRelation


# ---- SELECT


class SelectItem(msgspec.Struct, frozen=True):
    item: Term | ColumnName
    """A column, a call (aggregates, writetime, ttl, token, conversions; `count(*)` and `count(1)` have no arguments),
    or a literal or bind marker with a type hint."""
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Ordering:
    column: str
    descending: bool


class SelectStatement(msgspec.Struct, frozen=True, kw_only=True):
    table: TableName
    selectors: tuple[SelectItem, ...]
    """Empty: `*`."""
    distinct: bool = False
    where: tuple[Relation, ...] = ()
    order_by: tuple[Ordering, ...] = ()
    per_partition_limit: Term | None = None
    limit: Term | None = None
    allow_filtering: bool = False
    bypass_cache: bool = False
    using: UsingClause = NO_USING_CLAUSE


# ---- writes


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertStatement:
    table: TableName
    columns: tuple[str, ...]
    values: tuple[Term, ...]
    using: UsingClause = NO_USING_CLAUSE


class AssignmentKind(enum.StrEnum):
    COLUMN = "column"
    """`c = term`"""
    ELEMENT = "element"
    """`c[key] = term`"""
    APPEND = "append"
    """`c = c + term`"""
    PREPEND = "prepend"
    """`c = term + c`"""
    REMOVE = "remove"
    """`c = c - term`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    column: str
    kind: AssignmentKind
    value: Term
    key: Term | None = None
    """Of the element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatement:
    table: TableName
    assignments: tuple[Assignment, ...]
    where: tuple[Relation, ...]
    using: UsingClause = NO_USING_CLAUSE


@dataclass(frozen=True, slots=True)
class DeletedColumn:
    column: str
    key: Term | None = None
    """One element of a collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStatement:
    table: TableName
    columns: tuple[DeletedColumn, ...]
    """Empty: whole rows."""
    where: tuple[Relation, ...]
    using: UsingClause = NO_USING_CLAUSE


@dataclass(frozen=True, slots=True)
class BatchStatement:
    kind: BatchKind
    statements: tuple[InsertStatement | UpdateStatement | DeleteStatement, ...]
    using: UsingClause = NO_USING_CLAUSE


@dataclass(frozen=True, slots=True)
class TruncateStatement:
    table: TableName
    using: UsingClause = NO_USING_CLAUSE


# ---- schema

PropertyValue = str | dict[str, str]
"""The text of a string, number, boolean or duration, or a map of such texts."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The options after WITH, in text order; names in lower case."""

    items: tuple[tuple[str, PropertyValue], ...] = ()

    def get(self, name: str) -> PropertyValue | None:
        return next((value for key, value in self.items if key == name), None)


@dataclass(frozen=True, slots=True)
class CreateKeyspaceStatement:
    name: str
    properties: Properties
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterKeyspaceStatement:
    name: str
    properties: Properties
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropKeyspaceStatement:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    name: str
    type: CqlType
    is_static: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTableStatement:
    table: TableName
    columns: tuple[ColumnDefinition, ...]
    partition_key: tuple[str, ...]
    clustering: tuple[str, ...]
    clustering_order: tuple[Ordering, ...] = ()
    properties: Properties = Properties()
    compact_storage: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTableStatement:
    """One of the four kinds of change; the others are empty."""

    table: TableName
    added: tuple[ColumnDefinition, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    properties: Properties | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTableStatement:
    table: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class UseStatement:
    keyspace: str


class DescribeTarget(enum.StrEnum):
    CLUSTER = "cluster"
    SCHEMA = "schema"
    FULL_SCHEMA = "full schema"
    KEYSPACES = "keyspaces"
    KEYSPACE = "keyspace"
    ONLY_KEYSPACE = "only keyspace"
    TABLES = "tables"
    TABLE = "table"
    TYPES = "types"
    TYPE = "type"
    FUNCTIONS = "functions"
    FUNCTION = "function"
    AGGREGATES = "aggregates"
    AGGREGATE = "aggregate"
    INDEX = "index"
    VIEW = "materialized view"
    ANY = ""
    """A bare name: a keyspace, a table, …, whichever exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeStatement:
    target: DescribeTarget
    keyspace: str | None = None
    name: str | None = None
    with_internals: bool = False


@dataclass(frozen=True, slots=True)
class CallStatement:
    """`CALL keyspace.name(argument)`: an extension by which logged-in clients call services of the node."""

    keyspace: str
    name: str
    argument: Term


@dataclass(frozen=True, slots=True)
class UnsupportedStatement:
    """Valid CQL that this server does not support: `what` is for the error (`"CREATE INDEX"`, `"IF conditions"`, …)."""

    what: str


Modification = InsertStatement | UpdateStatement | DeleteStatement
SchemaStatement = (
    CreateKeyspaceStatement
    | AlterKeyspaceStatement
    | DropKeyspaceStatement
    | CreateTableStatement
    | AlterTableStatement
    | DropTableStatement
)
Statement = (
    SelectStatement
    | Modification
    | BatchStatement
    | TruncateStatement
    | SchemaStatement
    | UseStatement
    | DescribeStatement
    | CallStatement
    | UnsupportedStatement
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedStatement:
    statement: Statement
    markers: tuple[BindMarker, ...]
    """In the order of the text."""
    tokens: int
    token_characters: int
    """Without comments and space."""

"""Statements are parsed and planned once, and kept until their table changes."""

import hashlib
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ebla.cql.catalog import Catalog, VirtualTables
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import (
    BatchStatement,
    CallStatement,
    DeleteStatement,
    InsertStatement,
    ParsedStatement,
    SelectStatement,
    UnsupportedStatement,
    UpdateStatement,
)
from ebla.cql.plan.call_plan import CallPlan, plan_call
from ebla.cql.plan.modification_plan import BatchPlan, ModificationPlan, plan_batch, plan_modification
from ebla.cql.plan.point_select import PointSelectPlan, point_select
from ebla.cql.plan.select_plan import SelectPlan, plan_select
from ebla.feed.topology_view import TopologyView, View
from ebla.model.cql_types import ScalarType
from ebla.model.errors import InvalidRequest, Unprepared
from ebla.model.schema import TableSchema
from ebla.options import NodeLimits

QUERY_BYTES_MAX = 8 << 10
"""A longer text of a QUERY is not kept: the same one hardly comes twice."""
MANY_TOKENS = 1_000
"""Fewer tokens are parsed, planned and executed within some milliseconds."""
_STATEMENT_BYTES, _TOKEN_BYTES, _LITERAL_COPIES = 3_000, 120, 2
"""Memory of a compiled statement, by measurement. Its text is there once, and its literals twice more."""

K = TypeVar("K")
V = TypeVar("V")

Plan = SelectPlan | ModificationPlan | BatchPlan | CallPlan | None
"""None: a statement that is carried out as parsed (USE, DESCRIBE, TRUNCATE, schema changes)."""


class LruCache(Generic[K, V]):
    """Evicts the least recently used entries, except for the newest, to stay within its bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_entries")

    def __init__(self, bytes_max: int) -> None:
        self._entries: dict[K, tuple[V, int]] = {}
        self._bytes = 0
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        if self._bytes * 2 > self._bytes_max:
            # The order matters only once the cache fills up.
            del self._entries[key]
            self._entries[key] = found
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        before = self._entries.pop(key, None)
        self._bytes += size - (0 if before is None else before[1])
        self._entries[key] = (value, size)
        while self._bytes > self._bytes_max and len(self._entries) > 1:
            self._bytes -= self._entries.pop(next(iter(self._entries)))[1]


@dataclass(slots=True, kw_only=True)
class CompiledStatement:
    """A statement with its plan. It is valid as long as its table has the same schema."""

    parsed: ParsedStatement
    plan: Plan
    schema: TableSchema | None
    """The schema of the stored table that the plan is for."""
    text: str
    keyspace: str | None
    """The keyspace of the connection when the statement was compiled."""
    point: PointSelectPlan | None = None
    """The fast path for a single row, if the plan has one."""
    binds_collections: bool
    """Whether a value of a request may have many elements."""

    has_many_elements: bool = field(init=False)
    """In its text, so that it takes long to execute with any values."""
    valid_in: View | None = None
    """The view in which the statement was last checked to be valid."""

    def __post_init__(self) -> None:
        self.has_many_elements = self.parsed.tokens > MANY_TOKENS

    @property
    def size_bytes(self) -> int:
        """An estimate, within a factor of two."""
        literals = self.parsed.token_characters / max(1, len(self.text))
        text_bytes = int(sys.getsizeof(self.text) * (1 + _LITERAL_COPIES * literals))
        return _STATEMENT_BYTES + _TOKEN_BYTES * self.parsed.tokens + text_bytes


class StatementCache:
    def __init__(
        self, view: TopologyView, virtual: VirtualTables, call_names: Collection[str], limits: NodeLimits
    ) -> None:
        self._view = view
        self._virtual = virtual
        self._call_names = call_names
        self._limits = limits
        self._compiled: LruCache[tuple[str | None, str] | bytes, CompiledStatement] = LruCache(
            limits.cql_statement_cache_bytes_max
        )
        """By keyspace and text those of QUERY, by their ids those of PREPARE."""

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._view.current, self._virtual)

    def query(self, text: str, keyspace: str | None) -> CompiledStatement:
        """The statement of a QUERY message."""
        key = (keyspace, text)
        compiled = self._compiled.get(key)
        if compiled is None or not self._is_valid(compiled):
            compiled = self.compile(text, keyspace)
            # The argument of a CALL is in its text, and the same one hardly comes twice.
            is_kept = len(text) <= QUERY_BYTES_MAX and not isinstance(compiled.plan, CallPlan)
            if compiled.plan is not None and is_kept:
                self._compiled.put(key, compiled, compiled.size_bytes)
        return compiled

    def prepare(self, text: str, keyspace: str | None) -> tuple[bytes, CompiledStatement]:
        """The id depends on keyspace and text alone, so it is the same on every node."""
        compiled = self.compile(text, keyspace)
        if compiled.plan is None and compiled.parsed.markers:
            raise InvalidRequest("bind markers are not allowed in this statement")
        statement_id = hashlib.md5(f"{keyspace or ''}{text}".encode(), usedforsecurity=False).digest()
        self._compiled.put(statement_id, compiled, compiled.size_bytes)
        return statement_id, compiled

    def prepared(self, statement_id: bytes) -> CompiledStatement:
        compiled = self._compiled.get(statement_id)
        if compiled is None:
            raise Unprepared(
                f"Prepared query with ID {statement_id.hex()} not found (either the query was not prepared on this "
                "host, or it has been evicted)",
                statement_id=statement_id,
            )
        if not self._is_valid(compiled):
            compiled = self.compile(compiled.text, compiled.keyspace)
            self._compiled.put(statement_id, compiled, compiled.size_bytes)
        return compiled

    def compile(self, text: str, keyspace: str | None, tokens_max: int | None = None) -> CompiledStatement:
        parsed = parse(text, self._limits.cql_tokens_max if tokens_max is None else tokens_max)
        elements_max = self._limits.cql_elements_max
        statement = parsed.statement
        plan: Plan = None
        schema: TableSchema | None = None
        point: PointSelectPlan | None = None
        match statement:
            case UnsupportedStatement(what=what):
                raise InvalidRequest(f"{what}: not supported in this release")
            case SelectStatement(table=name):
                table = self.catalog.table(name, keyspace)
                plan = plan_select(statement, table, parsed.markers, elements_max)
                if isinstance(table, TableSchema):
                    schema, point = table, point_select(plan)
            case InsertStatement() | UpdateStatement() | DeleteStatement():
                schema = self.catalog.stored(statement.table, keyspace)
                plan = plan_modification(statement, schema, parsed.markers, elements_max)
            case BatchStatement():
                catalog = self.catalog
                plan = plan_batch(statement, lambda name: catalog.stored(name, keyspace), parsed.markers, elements_max)
            case CallStatement():
                plan = plan_call(statement, self._call_names, parsed.markers)
            case _:
                pass
        variables = () if plan is None else plan.variables
        return CompiledStatement(
            parsed=parsed,
            plan=plan,
            schema=schema,
            text=text,
            keyspace=keyspace,
            point=point,
            binds_collections=any(not isinstance(variable.type, ScalarType) for variable in variables),
        )

    def _is_valid(self, compiled: CompiledStatement) -> bool:
        view = self._view.current
        if compiled.valid_in is view:
            return True
        is_valid = _has_current_schema(compiled, view)
        compiled.valid_in = view if is_valid else None
        return is_valid


def _has_current_schema(compiled: CompiledStatement, view: View) -> bool:
    if isinstance(compiled.plan, BatchPlan):
        return all(view.schemas.get(part.schema.id) is part.schema for part in compiled.plan.parts)
    return compiled.schema is None or view.schemas.get(compiled.schema.id) is compiled.schema

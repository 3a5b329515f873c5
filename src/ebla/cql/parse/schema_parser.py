"""Parses CREATE, ALTER and DROP of keyspaces and tables, and DESCRIBE."""

from dataclasses import replace

from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.select_parser import ordering
from ebla.cql.parse.statements import (
    AlterKeyspaceStatement,
    AlterTableStatement,
    ColumnDefinition,
    CreateKeyspaceStatement,
    CreateTableStatement,
    DescribeStatement,
    DescribeTarget,
    DropKeyspaceStatement,
    DropTableStatement,
    Ordering,
    Properties,
    PropertyValue,
    SchemaStatement,
    TableName,
)
from ebla.cql.parse.term_parser import is_constant_word, type_name
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature, column_name
from ebla.cql.parse.where_parser import table_name
from ebla.model.errors import InvalidRequest

UNSUPPORTED_OBJECTS = {
    "INDEX": "indexes",
    "CUSTOM": "indexes",
    "MATERIALIZED": "materialized views",
    "TYPE": "user-defined types",
    "FUNCTION": "user-defined functions",
    "AGGREGATE": "user-defined aggregates",
    "OR": "user-defined functions",
    "TRIGGER": "triggers",
    "ROLE": "roles",
    "USER": "roles",
    "SERVICE": "service levels",
    "SERVICE_LEVEL": "service levels",
}
"""What may follow CREATE, ALTER or DROP in CQL and is not supported here."""


def create(reader: TokenStream) -> SchemaStatement:
    if _accept_keyspace(reader):
        exists = _accept_if(reader, "NOT", "EXISTS")
        return CreateKeyspaceStatement(reader.name("a keyspace"), _with(reader), exists)
    if _accept_table(reader):
        return _create_table(reader)
    raise _missing(reader, "CREATE")


def alter(reader: TokenStream) -> SchemaStatement:
    if _accept_keyspace(reader):
        exists = _accept_if(reader, "EXISTS")
        return AlterKeyspaceStatement(reader.name("a keyspace"), _with(reader), exists)
    if _accept_table(reader):
        return _alter_table(reader)
    raise _missing(reader, "ALTER")


def drop(reader: TokenStream) -> SchemaStatement:
    if _accept_keyspace(reader):
        exists = _accept_if(reader, "EXISTS")
        return DropKeyspaceStatement(reader.name("a keyspace"), exists)
    if _accept_table(reader):
        exists = _accept_if(reader, "EXISTS")
        return DropTableStatement(table_name(reader), exists)
    raise _missing(reader, "DROP")


def _missing(reader: TokenStream, verb: str) -> Exception:
    what = UNSUPPORTED_OBJECTS.get(reader.token.upper)
    return reader.failure(f"expecting KEYSPACE or TABLE after {verb}") if what is None else UnsupportedFeature(what)


def _accept_keyspace(reader: TokenStream) -> bool:
    return reader.accept_word("KEYSPACE") or reader.accept_word("SCHEMA")


def _accept_table(reader: TokenStream) -> bool:
    return reader.accept_word("TABLE") or reader.accept_word("COLUMNFAMILY")


def _accept_if(reader: TokenStream, *condition: str) -> bool:
    if not reader.accept_word("IF"):
        return False
    reader.expect_word(*condition)
    return True


# ---- tables


class _TableParts:
    """The columns and key of a CREATE TABLE, while its brackets are parsed."""

    def __init__(self) -> None:
        self.columns: list[ColumnDefinition] = []
        self.partition_key: tuple[str, ...] = ()
        self.clustering: tuple[str, ...] = ()
        self.keys = 0


def _create_table(reader: TokenStream) -> CreateTableStatement:
    exists = _accept_if(reader, "NOT", "EXISTS")
    table = table_name(reader)
    parts = _TableParts()
    _table_parts(reader, parts)
    if parts.keys > 1:
        raise InvalidRequest("Multiple PRIMARY KEYs specified (exactly one required)")
    order, properties, compact = _table_options(reader)
    return CreateTableStatement(
        table=table,
        columns=tuple(parts.columns),
        partition_key=parts.partition_key,
        clustering=parts.clustering,
        clustering_order=order,
        properties=properties,
        compact_storage=compact,
        if_not_exists=exists,
    )


def _table_parts(reader: TokenStream, parts: _TableParts) -> None:
    """Commas may follow each other or end the list, as in Cassandra."""
    reader.expect_sign("(")
    _table_part(reader, parts)
    while reader.accept_sign(","):
        if not reader.at_sign(",") and not reader.at_sign(")"):
            _table_part(reader, parts)
    reader.expect_sign(")")


def _table_part(reader: TokenStream, parts: _TableParts) -> None:
    if reader.at_word("PRIMARY"):
        reader.expect_word("PRIMARY", "KEY")
        parts.keys += 1
        _primary_key(reader, parts)
        return
    column = _column(reader)
    if reader.accept_word("PRIMARY"):
        reader.expect_word("KEY")
        parts.keys += 1
        parts.partition_key = (column.name,)
    parts.columns.append(column)


def _primary_key(reader: TokenStream, parts: _TableParts) -> None:
    reader.expect_sign("(")
    in_parentheses = reader.at_sign("(")
    parts.partition_key = reader.in_parentheses(column_name) if in_parentheses else (column_name(reader),)
    parts.clustering = reader.several(column_name) if reader.accept_sign(",") else ()
    reader.expect_sign(")")


def _table_options(reader: TokenStream) -> tuple[tuple[Ordering, ...], Properties, bool]:
    order: tuple[Ordering, ...] = ()
    items: list[tuple[str, PropertyValue]] = []
    compact = False
    if not reader.accept_word("WITH"):
        return order, Properties(), compact
    while True:
        if reader.accept_word("COMPACT"):
            reader.expect_word("STORAGE")
            compact = True
        elif reader.at_word("CLUSTERING") and reader.peek().upper == "ORDER":
            reader.expect_word("CLUSTERING", "ORDER", "BY")
            order = reader.in_parentheses(ordering)
        else:
            items.append(_property(reader))
        if not reader.accept_word("AND"):
            return order, Properties(tuple(items)), compact


def _alter_table(reader: TokenStream) -> AlterTableStatement:
    exists = _accept_if(reader, "EXISTS")
    table = table_name(reader)
    if reader.accept_word("ADD"):
        return AlterTableStatement(table=table, added=_added(reader), if_exists=exists)
    if reader.accept_word("DROP"):
        return _dropped_columns(reader, table, exists)
    if reader.accept_word("RENAME"):
        renamed = [_renamed(reader)]
        while reader.accept_word("AND"):
            renamed.append(_renamed(reader))
        return AlterTableStatement(table=table, renamed=tuple(renamed), if_exists=exists)
    if reader.at_word("WITH"):
        return AlterTableStatement(table=table, properties=_with(reader), if_exists=exists)
    if reader.at_word("ALTER"):
        raise UnsupportedFeature("changing the type of a column")
    raise reader.failure("expecting ADD, DROP, RENAME or WITH")


def _added(reader: TokenStream) -> tuple[ColumnDefinition, ...]:
    if reader.at_word("IF"):
        raise UnsupportedFeature("ADD IF NOT EXISTS")
    return reader.in_parentheses(_column) if reader.at_sign("(") else reader.several(_column)


def _column(reader: TokenStream) -> ColumnDefinition:
    return ColumnDefinition(column_name(reader), type_name(reader), reader.accept_word("STATIC"))


def _dropped_columns(reader: TokenStream, table: TableName, exists: bool) -> AlterTableStatement:
    if reader.accept_word("COMPACT"):
        raise UnsupportedFeature("COMPACT STORAGE")
    found = reader.in_parentheses(column_name) if reader.at_sign("(") else reader.several(column_name)
    if reader.at_word("USING"):
        raise UnsupportedFeature("DROP … USING TIMESTAMP")
    return AlterTableStatement(table=table, dropped=found, if_exists=exists)


def _renamed(reader: TokenStream) -> tuple[str, str]:
    old = column_name(reader)
    reader.expect_word("TO")
    return old, column_name(reader)


# ---- properties


def _with(reader: TokenStream) -> Properties:
    reader.expect_word("WITH")
    items = [_property(reader)]
    while reader.accept_word("AND"):
        items.append(_property(reader))
    return Properties(tuple(items))


def _property(reader: TokenStream) -> tuple[str, PropertyValue]:
    name = reader.name("an option")
    reader.expect_sign("=")
    if not reader.accept_sign("{"):
        return name, _constant(reader)
    entries: dict[str, str] = {}
    while not reader.accept_sign("}"):
        if entries:
            reader.expect_sign(",")
        key = _constant(reader)
        reader.expect_sign(":")
        if key in entries:
            raise reader.failure(f"after a second '{key}'")
        entries[key] = _constant(reader)
    return name, entries


_CONSTANTS = (TokenKind.STRING, TokenKind.INTEGER, TokenKind.DECIMAL, TokenKind.DURATION, TokenKind.UUID)


def _constant(reader: TokenStream) -> str:
    """The text of a constant. Other words have to be in quotes."""
    sign = "-" if reader.accept_sign("-") else ""
    token = reader.token
    if token.kind in _CONSTANTS:
        return sign + reader.take().text
    if is_constant_word(token):
        return sign + reader.take().text.lower()
    raise reader.failure()


# ---- DESCRIBE

_PLAIN_TARGETS = {
    "CLUSTER": DescribeTarget.CLUSTER,
    "SCHEMA": DescribeTarget.SCHEMA,
    "KEYSPACES": DescribeTarget.KEYSPACES,
    "TABLES": DescribeTarget.TABLES,
    "COLUMNFAMILIES": DescribeTarget.TABLES,
    "TYPES": DescribeTarget.TYPES,
    "FUNCTIONS": DescribeTarget.FUNCTIONS,
    "AGGREGATES": DescribeTarget.AGGREGATES,
}
_NAMED_TARGETS = {
    "TABLE": DescribeTarget.TABLE,
    "COLUMNFAMILY": DescribeTarget.TABLE,
    "TYPE": DescribeTarget.TYPE,
    "FUNCTION": DescribeTarget.FUNCTION,
    "AGGREGATE": DescribeTarget.AGGREGATE,
    "INDEX": DescribeTarget.INDEX,
}


def describe(reader: TokenStream) -> DescribeStatement:
    found = _described(reader)
    if reader.accept_word("WITH"):
        reader.expect_word("INTERNALS")
        if reader.accept_word("AND"):
            reader.expect_word("PASSWORDS")
        return replace(found, with_internals=True)
    return found


def _described(reader: TokenStream) -> DescribeStatement:
    if reader.accept_word("FULL"):
        reader.expect_word("SCHEMA")
        return DescribeStatement(target=DescribeTarget.FULL_SCHEMA)
    word = reader.token.upper
    ends = reader.peek().kind is TokenKind.END or reader.peek().text == ";" or reader.peek().upper == "WITH"
    if word in _PLAIN_TARGETS and ends:
        reader.take()
        return DescribeStatement(target=_PLAIN_TARGETS[word])
    only = reader.accept_word("ONLY")
    if reader.accept_word("KEYSPACE"):
        target = DescribeTarget.ONLY_KEYSPACE if only else DescribeTarget.KEYSPACE
        at_end = reader.token.kind is TokenKind.END or reader.at_sign(";") or reader.at_word("WITH")
        return DescribeStatement(target=target, keyspace=None if at_end else reader.name("a keyspace"))
    if word in _NAMED_TARGETS and not ends:
        reader.take()
        return _named(reader, _NAMED_TARGETS[word])
    if reader.accept_word("MATERIALIZED"):
        reader.expect_word("VIEW")
        return _named(reader, DescribeTarget.VIEW)
    return _named(reader, DescribeTarget.ANY)


def _named(reader: TokenStream, target: DescribeTarget) -> DescribeStatement:
    name = table_name(reader)
    return DescribeStatement(target=target, keyspace=name.keyspace, name=name.name)

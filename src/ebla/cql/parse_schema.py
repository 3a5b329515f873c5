"""CREATE, ALTER and DROP of keyspaces and tables; DESCRIBE."""

from ebla.cql.lexer import Kind
from ebla.cql.parse_select import ordering
from ebla.cql.parse_terms import type_name
from ebla.cql.parse_where import table_name
from ebla.cql.statements import (
    AlterKeyspace,
    AlterTable,
    ColumnDefinition,
    CreateKeyspace,
    CreateTable,
    Describe,
    DescribeTarget,
    DropKeyspace,
    DropTable,
    Ordering,
    Properties,
    PropertyValue,
    SchemaStatement,
    TableName,
)
from ebla.cql.token_reader import NotThere, Reader

MISSING = {
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
"""What may follow CREATE, ALTER or DROP and is not there."""


def create(reader: Reader) -> SchemaStatement:
    if _accept_keyspace(reader):
        exists = _if_not_exists(reader)
        return CreateKeyspace(reader.name("a keyspace"), _with(reader), exists)
    if _accept_table(reader):
        return _create_table(reader)
    raise _missing(reader, "CREATE")


def alter(reader: Reader) -> SchemaStatement:
    if _accept_keyspace(reader):
        exists = _if_exists(reader)
        return AlterKeyspace(reader.name("a keyspace"), _with(reader), exists)
    if _accept_table(reader):
        return _alter_table(reader)
    raise _missing(reader, "ALTER")


def drop(reader: Reader) -> SchemaStatement:
    if _accept_keyspace(reader):
        exists = _if_exists(reader)
        return DropKeyspace(reader.name("a keyspace"), exists)
    if _accept_table(reader):
        exists = _if_exists(reader)
        return DropTable(table_name(reader), exists)
    raise _missing(reader, "DROP")


def _missing(reader: Reader, verb: str) -> Exception:
    what = MISSING.get(reader.token.upper)
    return reader.failure(f"expecting KEYSPACE or TABLE after {verb}") if what is None else NotThere(what)


def _accept_keyspace(reader: Reader) -> bool:
    return reader.accept_word("KEYSPACE") or reader.accept_word("SCHEMA")


def _accept_table(reader: Reader) -> bool:
    return reader.accept_word("TABLE") or reader.accept_word("COLUMNFAMILY")


def _if_not_exists(reader: Reader) -> bool:
    if not reader.accept_word("IF"):
        return False
    reader.expect_word("NOT", "EXISTS")
    return True


def _if_exists(reader: Reader) -> bool:
    if not reader.accept_word("IF"):
        return False
    reader.expect_word("EXISTS")
    return True


# ---- tables


class _TableParts:
    """What is gathered while the brackets of CREATE TABLE are read."""

    def __init__(self) -> None:
        self.columns: list[ColumnDefinition] = []
        self.partition_key: tuple[str, ...] = ()
        self.clustering: tuple[str, ...] = ()
        self.keys = 0


def _create_table(reader: Reader) -> CreateTable:
    exists = _if_not_exists(reader)
    table = table_name(reader)
    parts = _TableParts()
    reader.expect_sign("(")
    _table_part(reader, parts)
    while reader.accept_sign(","):
        _table_part(reader, parts)
    reader.expect_sign(")")
    if parts.keys > 1:
        raise reader.failure("after a table with more than one PRIMARY KEY")
    order, properties, compact = _table_options(reader)
    return CreateTable(
        table,
        tuple(parts.columns),
        parts.partition_key,
        parts.clustering,
        order,
        properties,
        compact,
        exists,
    )


def _table_part(reader: Reader, parts: _TableParts) -> None:
    if reader.at_word("PRIMARY"):
        reader.expect_word("PRIMARY", "KEY")
        parts.keys += 1
        _primary_key(reader, parts)
        return
    name = reader.name("a column")
    kind = type_name(reader)
    is_static = reader.accept_word("STATIC")
    if reader.accept_word("PRIMARY"):
        reader.expect_word("KEY")
        parts.keys += 1
        parts.partition_key = (name,)
    parts.columns.append(ColumnDefinition(name, kind, is_static))


def _primary_key(reader: Reader, parts: _TableParts) -> None:
    reader.expect_sign("(")
    if reader.accept_sign("("):
        partition = [reader.name("a column")]
        while reader.accept_sign(","):
            partition.append(reader.name("a column"))
        reader.expect_sign(")")
    else:
        partition = [reader.name("a column")]
    clustering: list[str] = []
    while reader.accept_sign(","):
        clustering.append(reader.name("a column"))
    reader.expect_sign(")")
    parts.partition_key, parts.clustering = tuple(partition), tuple(clustering)


def _table_options(reader: Reader) -> tuple[tuple[Ordering, ...], Properties, bool]:
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
            order = _clustering_order(reader)
        else:
            items.append(_property(reader))
        if not reader.accept_word("AND"):
            return order, Properties(tuple(items)), compact


def _clustering_order(reader: Reader) -> tuple[Ordering, ...]:
    reader.expect_word("CLUSTERING", "ORDER", "BY")
    reader.expect_sign("(")
    found = [ordering(reader)]
    while reader.accept_sign(","):
        found.append(ordering(reader))
    reader.expect_sign(")")
    return tuple(found)


def _alter_table(reader: Reader) -> AlterTable:
    exists = _if_exists(reader)
    table = table_name(reader)
    if reader.accept_word("ADD"):
        return AlterTable(table, added=_added(reader), if_exists=exists)
    if reader.accept_word("DROP"):
        return _dropped_columns(reader, table, exists)
    if reader.accept_word("RENAME"):
        renamed = [_renamed(reader)]
        while reader.accept_word("AND"):
            renamed.append(_renamed(reader))
        return AlterTable(table, renamed=tuple(renamed), if_exists=exists)
    if reader.at_word("WITH"):
        return AlterTable(table, properties=_with(reader), if_exists=exists)
    if reader.at_word("ALTER"):
        raise NotThere("changing the type of a column")
    raise reader.failure("expecting ADD, DROP, RENAME or WITH")


def _added(reader: Reader) -> tuple[ColumnDefinition, ...]:
    if reader.at_word("IF"):
        raise NotThere("ADD IF NOT EXISTS")
    in_brackets = reader.accept_sign("(")
    found = [_column(reader)]
    while reader.accept_sign(","):
        found.append(_column(reader))
    if in_brackets:
        reader.expect_sign(")")
    return tuple(found)


def _column(reader: Reader) -> ColumnDefinition:
    return ColumnDefinition(reader.name("a column"), type_name(reader), reader.accept_word("STATIC"))


def _dropped_columns(reader: Reader, table: TableName, exists: bool) -> AlterTable:
    if reader.accept_word("COMPACT"):
        raise NotThere("COMPACT STORAGE")
    in_brackets = reader.accept_sign("(")
    found = [reader.name("a column")]
    while reader.accept_sign(","):
        found.append(reader.name("a column"))
    if in_brackets:
        reader.expect_sign(")")
    if reader.at_word("USING"):
        raise NotThere("DROP … USING TIMESTAMP")
    return AlterTable(table, dropped=tuple(found), if_exists=exists)


def _renamed(reader: Reader) -> tuple[str, str]:
    old = reader.name("a column")
    reader.expect_word("TO")
    return old, reader.name("a column")


# ---- properties


def _with(reader: Reader) -> Properties:
    reader.expect_word("WITH")
    items = [_property(reader)]
    while reader.accept_word("AND"):
        items.append(_property(reader))
    return Properties(tuple(items))


def _property(reader: Reader) -> tuple[str, PropertyValue]:
    name = reader.name("an option")
    reader.expect_sign("=")
    if not reader.accept_sign("{"):
        return name, _plain(reader)
    entries: dict[str, str] = {}
    while not reader.accept_sign("}"):
        if entries:
            reader.expect_sign(",")
        key = _plain(reader)
        reader.expect_sign(":")
        if key in entries:
            raise reader.failure(f"after a second '{key}'")
        entries[key] = _plain(reader)
    return name, entries


def _plain(reader: Reader) -> str:
    sign = "-" if reader.accept_sign("-") else ""
    token = reader.token
    allowed = (Kind.STRING, Kind.INTEGER, Kind.DECIMAL, Kind.DURATION, Kind.UUID, Kind.NAME)
    if token.kind not in allowed:
        raise reader.failure("expecting a value")
    reader.take()
    return sign + (token.text.lower() if token.kind is Kind.NAME else token.text)


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


def describe(reader: Reader) -> Describe:
    found = _described(reader)
    if reader.accept_word("WITH"):
        reader.expect_word("INTERNALS")
        if reader.accept_word("AND"):
            reader.expect_word("PASSWORDS")
        return Describe(found.target, found.keyspace, found.name, with_internals=True)
    return found


def _described(reader: Reader) -> Describe:
    if reader.accept_word("FULL"):
        reader.expect_word("SCHEMA")
        return Describe(DescribeTarget.FULL_SCHEMA)
    word = reader.token.upper
    ends = reader.peek().kind is Kind.END or reader.peek().text == ";" or reader.peek().upper == "WITH"
    if word in _PLAIN_TARGETS and ends:
        reader.take()
        return Describe(_PLAIN_TARGETS[word])
    only = reader.accept_word("ONLY")
    if reader.accept_word("KEYSPACE"):
        target = DescribeTarget.ONLY_KEYSPACE if only else DescribeTarget.KEYSPACE
        at_end = reader.token.kind is Kind.END or reader.at_sign(";") or reader.at_word("WITH")
        return Describe(target, None if at_end else reader.name("a keyspace"))
    if word in _NAMED_TARGETS and not ends:
        reader.take()
        return _named(reader, _NAMED_TARGETS[word])
    if reader.accept_word("MATERIALIZED"):
        reader.expect_word("VIEW")
        return _named(reader, DescribeTarget.VIEW)
    return _named(reader, DescribeTarget.ANY)


def _named(reader: Reader, target: DescribeTarget) -> Describe:
    name = table_name(reader)
    return Describe(target, name.keyspace, name.name)

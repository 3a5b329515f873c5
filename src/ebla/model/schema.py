"""The schema of a table: columns, keys, clustering order and options."""

import enum
from functools import cached_property

import msgspec

from ebla.model.cql_types import CqlType, Scalar, contains, is_assignable, is_multi_cell
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.identity import TableId

COLUMNS_MAX = 1_000
KEYSPACE_NAME_CHARACTERS_MAX = 48
TABLE_NAME_CHARACTERS_MAX = 222
COLUMN_NAME_CHARACTERS_MAX = 1_024
TTL_S_MAX = 20 * 365 * 24 * 3600


class ColumnKind(enum.StrEnum):
    PARTITION_KEY = "partition_key"
    CLUSTERING = "clustering"
    STATIC = "static"
    REGULAR = "regular"


class TombstoneGc(enum.StrEnum):
    """When a compaction may drop a tombstone."""

    TIMEOUT = "timeout"
    REPAIR = "repair"
    IMMEDIATE = "immediate"
    DISABLED = "disabled"


class Column(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    name: str
    type: CqlType
    kind: ColumnKind
    position: int = 0
    """Its position within the partition key or the clustering key; 0 for other columns."""
    descending: bool = False
    number: int = 0
    """Identifies the column in stored cells. Never reused, so that a name that is dropped and added again is another
    column."""


class TableOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    comment: str = ""
    default_ttl_s: int = 0
    gc_grace_s: int = 864_000
    tombstone_gc: TombstoneGc = TombstoneGc.TIMEOUT
    others: tuple[tuple[str, str], ...] = ()
    """Options that are accepted and shown, as CQL text, without effect."""
    propagation_s: int = 3_600
    """How long a write may still be in flight to a replica after a repair of its range."""


class TableSchema(msgspec.Struct, frozen=True, array_like=True, dict=True, kw_only=True):
    """Columns are ordered: partition key, clustering, static, regular, the last two by name."""

    id: TableId
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    options: TableOptions = TableOptions()
    version: int = 1
    """Grows with every change; stored rows name the version that wrote them."""
    next_number: int = 0
    layouts: tuple[tuple[int, ...], ...] = ()
    """The regular columns' numbers of each version, version 1 first: the order of cells in stored rows."""
    dropped: tuple[Column, ...] = ()
    """Columns that were dropped, the last one of each name; a column of this name may exist again."""

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        return self._of(ColumnKind.PARTITION_KEY)

    @cached_property
    def clustering(self) -> tuple[Column, ...]:
        return self._of(ColumnKind.CLUSTERING)

    @cached_property
    def static(self) -> tuple[Column, ...]:
        return self._of(ColumnKind.STATIC)

    @cached_property
    def regular(self) -> tuple[Column, ...]:
        return self._of(ColumnKind.REGULAR)

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def by_number(self) -> dict[int, Column]:
        return {column.number: column for column in self.columns}

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    def column(self, name: str) -> Column:
        found = self.by_name.get(name)
        if found is None:
            raise NotFound(f"table {self.full_name} has no column {name!r}")
        return found

    def _of(self, kind: ColumnKind) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind is kind)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TableSchema)


def encode_schema(schema: TableSchema) -> bytes:
    return _encoder.encode(schema)


def decode_schema(data: bytes) -> TableSchema:
    return _decoder.decode(data)


_PLACE = {kind: place for place, kind in enumerate(ColumnKind)}


def sort_columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda one: (_PLACE[one.kind], one.position, one.name)))


def new_schema(
    table_id: TableId, keyspace: str, name: str, columns: tuple[Column, ...], options: TableOptions | None = None
) -> TableSchema:
    """A new table, its columns numbered. Raises `InvalidRequest` for a name or columns that no table may have."""
    ordered = sort_columns(columns)
    numbered = tuple(msgspec.structs.replace(column, number=number) for number, column in enumerate(ordered))
    schema = TableSchema(
        id=table_id,
        keyspace=keyspace,
        name=name,
        columns=numbered,
        options=options or TableOptions(),
        version=1,
        next_number=len(numbered),
    )
    schema = msgspec.structs.replace(schema, layouts=(_layout(numbered),))
    check_schema(schema)
    return schema


def with_column(schema: TableSchema, column: Column) -> TableSchema:
    """Adds a static or regular column, with a number that no earlier column had."""
    if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(f"{column.name!r} cannot become part of the key of a table that exists")
    before = next((one for one in schema.dropped if one.name == column.name), None)
    if before is not None and not _may_follow(before.type, column.type):
        raise InvalidRequest(
            f"Cannot re-add previously dropped column {column.name!r} of type {column.type}, incompatible with "
            f"previous type {before.type}"
        )
    added = msgspec.structs.replace(column, number=schema.next_number)
    changed = _next_version(schema, sort_columns((*schema.columns, added)))
    check_schema(changed)
    return msgspec.structs.replace(changed, next_number=schema.next_number + 1)


def without_column(schema: TableSchema, name: str) -> TableSchema:
    column = schema.column(name)
    if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(f"{name!r} is part of the key of {schema.full_name} and cannot be dropped")
    kept = tuple(one for one in schema.columns if one.name != name)
    dropped = (*(one for one in schema.dropped if one.name != name), column)
    return msgspec.structs.replace(_next_version(schema, kept), dropped=dropped)


def _may_follow(before: CqlType, after: CqlType) -> bool:
    """Stored cells name their column by number, so the old ones are never read as the new type. Tools that read backups
    by name would."""
    return is_multi_cell(before) is is_multi_cell(after) and is_assignable(before, after)


def with_options(schema: TableSchema, options: TableOptions) -> TableSchema:
    changed = msgspec.structs.replace(_next_version(schema, schema.columns), options=options)
    check_schema(changed)
    return changed


def with_renamed_column(schema: TableSchema, old: str, new: str) -> TableSchema:
    """Renames a key column. Stored cells refer to columns by number, keys not at all, so nothing stored changes. Other
    columns cannot be renamed: a freed name could be mistaken for the column that had it before."""
    column = schema.column(old)
    if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(f"{old!r} is not part of the key of {schema.full_name}, and only such columns are renamed")
    if new in schema.by_name:
        raise InvalidRequest(f"table {schema.full_name} has a column {new!r} already")
    renamed = msgspec.structs.replace(column, name=new)
    changed = _next_version(schema, tuple(renamed if one is column else one for one in schema.columns))
    check_schema(changed)
    return changed


def _next_version(schema: TableSchema, columns: tuple[Column, ...]) -> TableSchema:
    layouts = (*schema.layouts, _layout(columns))
    return msgspec.structs.replace(schema, columns=columns, version=schema.version + 1, layouts=layouts)


def _layout(columns: tuple[Column, ...]) -> tuple[int, ...]:
    return tuple(column.number for column in columns if column.kind is ColumnKind.REGULAR)


def check_schema(schema: TableSchema) -> None:
    for what, name, most in (
        ("keyspace", schema.keyspace, KEYSPACE_NAME_CHARACTERS_MAX),
        ("table", schema.name, TABLE_NAME_CHARACTERS_MAX),
    ):
        if not 1 <= len(name) <= most:
            raise InvalidRequest(f"{name!r} is not a {what} name: 1 to {most} characters")
    names = [column.name for column in schema.columns]
    if len(names) > COLUMNS_MAX:
        raise InvalidRequest(f"{schema.full_name} has {len(names)} columns; at most {COLUMNS_MAX} are allowed")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"column {twice!r} is declared twice in {schema.full_name}")
    for name in names:
        if not 1 <= len(name) <= COLUMN_NAME_CHARACTERS_MAX:
            raise InvalidRequest(f"{name!r} is not a column name: 1 to {COLUMN_NAME_CHARACTERS_MAX} characters")
    if not schema.partition_key:
        raise InvalidRequest(f"table {schema.full_name} needs a primary key")
    if schema.static and not schema.clustering:
        raise InvalidRequest(f"static columns of {schema.full_name} need a clustering key to be static for")
    for part in (schema.partition_key, schema.clustering):
        if [column.position for column in part] != list(range(len(part))):
            raise InvalidRequest(f"the key columns of {schema.full_name} are to be counted from 0, each once")
        for column in part:
            _check_key_column(column)
    _check_options(schema)


def _check_options(schema: TableSchema) -> None:
    options = schema.options
    if not 0 <= options.default_ttl_s <= TTL_S_MAX:
        raise InvalidRequest(f"default_time_to_live of {schema.full_name} must be 0 to {TTL_S_MAX} seconds")
    if options.gc_grace_s < 0:
        raise InvalidRequest(f"gc_grace_seconds of {schema.full_name} must not be negative")
    names = [name for name, _ in options.others]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"option {twice!r} of {schema.full_name} is given twice")


def _check_key_column(column: Column) -> None:
    if is_multi_cell(column.type):
        raise InvalidRequest(f"key column {column.name!r} must be frozen: frozen<{column.type}>")
    if contains(column.type, Scalar.DURATION):
        raise InvalidRequest(f"key column {column.name!r} cannot be a duration: durations have no order")

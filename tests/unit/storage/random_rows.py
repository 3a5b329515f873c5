"""Tables and rows of every kind, drawn from a seed, and what a plain reading of them shows."""

import math
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from ebla.model.byte_comparable import canonical
from ebla.model.cql_types import EMPTIABLE, CqlType, ListType, MapType, Scalar, ScalarType, SetType, TupleType
from ebla.model.cql_types import parse_type as kind_of
from ebla.model.identity import TableId
from ebla.model.rows import (
    EMPTY_HEAD,
    Cell,
    CollectionCells,
    Deletion,
    PartitionHead,
    RangeDeletion,
    Row,
    RowMarker,
    merge_heads,
)
from ebla.model.schema import Column, ColumnKind, TableSchema, new_schema
from ebla.model.token import composite_key, token_of
from ebla.model.values import Duration, decode, encode
from ebla.storage.codec.key_codec import encode_clustering, head_key, partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_head, encode_row
from ebla.storage.columns.arrow_types import arrow_type, number_type
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.merge.row_merge import facts_of

KEY_KINDS = [
    "ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "float", "inet", "int", "smallint", "text",
    "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint", "frozen<list<int>>", "frozen<tuple<int, text>>",
]  # fmt: skip
VALUE_KINDS = [
    *KEY_KINDS,
    "duration",
    "frozen<set<text>>",
    "frozen<map<text, timestamp>>",
    "tuple<date, uuid, duration>",
]


def column(
    name: str, kind: str, place: ColumnKind = ColumnKind.REGULAR, position: int = 0, *, desc: bool = False
) -> Column:
    return Column(name=name, type=kind_of(kind), kind=place, position=position, descending=desc)


def table(*columns: Column) -> TableSchema:
    return new_schema(TableId(uuid.UUID(int=7)), "ks", "t", columns)


MIXED = table(
    column("p", "text", ColumnKind.PARTITION_KEY),
    column("c", "int", ColumnKind.CLUSTERING),
    column("d", "text", ColumnKind.CLUSTERING, 1, desc=True),
    column("s", "text", ColumnKind.STATIC),
    column("m", "map<text, int>"),
    column("l", "list<int>"),
    column("w", "text"),
    column("x", "int"),
    column("y", "double"),
    column("z", "blob"),
)
"""Everything that makes rows other than plain."""


def random_scalar(rng: Random, scalar: Scalar) -> Any:
    match scalar:
        case Scalar.BOOLEAN:
            return rng.random() < 0.5
        case Scalar.ASCII | Scalar.TEXT:
            letters = "ab\0\x01z" if scalar is Scalar.ASCII else "ab\0\x01ž€"
            return "".join(rng.choices(letters, k=rng.randrange(5)))
        case Scalar.BLOB:
            return bytes(rng.choices([0, 1, 254, 255], k=rng.randrange(5)))
        case Scalar.INET:
            return rng.choice(["127.0.0.1", "0.0.0.0", "::1", "ff00::ffff"])
        case Scalar.UUID:
            return uuid.UUID(int=rng.getrandbits(128), version=rng.choice([1, 4, 5]))
        case Scalar.TIMEUUID:
            return uuid.UUID(int=rng.getrandbits(128), version=1)
        case Scalar.DECIMAL:
            return Decimal(rng.randrange(-1000, 1000)).scaleb(rng.randrange(-3, 4))
        case Scalar.VARINT:
            return rng.choice([0, -1, 127, 128, -129, rng.getrandbits(100), -rng.getrandbits(80)])
        case Scalar.DURATION:
            sign = rng.choice([-1, 1])
            return Duration(sign * rng.randrange(50), sign * rng.randrange(50), sign * rng.getrandbits(40))
        case Scalar.DOUBLE | Scalar.FLOAT:
            number = rng.choice([0.0, -0.0, math.inf, -math.inf, math.nan, 1.5, rng.uniform(-9, 9)])
            return struct.unpack(">f", struct.pack(">f", number))[0] if scalar is Scalar.FLOAT else number
        case Scalar.TIME:
            return rng.randrange(86_400_000_000_000)
        case _:
            bits = {Scalar.TINYINT: 8, Scalar.SMALLINT: 16, Scalar.INT: 32, Scalar.DATE: 32}.get(scalar, 64)
            least = -(1 << (bits - 1))
            return rng.choice([least, -1, 0, 1, -least - 1, rng.randrange(least, -least)])


def random_value(rng: Random, kind: CqlType) -> bytes:
    """In wire form, as stored."""
    return canonical(kind, encode(kind, _random(rng, kind)))


def _random(rng: Random, kind: CqlType) -> Any:
    match kind:
        case ScalarType(scalar=scalar):
            return random_scalar(rng, scalar)
        case ListType(element=element) | SetType(element=element):
            return [_random(rng, element) for _ in range(rng.randrange(3))]
        case MapType(key=key, value=value):
            return [(_random(rng, key), _random(rng, value)) for _ in range(rng.randrange(3))]
        case TupleType(elements=elements):
            return [None if rng.random() < 0.3 else _random(rng, one) for one in elements]


def stored_key(schema: TableSchema, values: Mapping[str, bytes]) -> bytes:
    prefix = stored_prefix([values[one.name] for one in schema.partition_key])
    return row_key(prefix, encode_clustering(schema.clustering, [values[one.name] for one in schema.clustering]))


def stored_prefix(parts: Sequence[bytes]) -> bytes:
    partition = composite_key(parts)
    return partition_prefix(token_of(partition), partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often rows are other than plain, and how the rest of a draw looks."""

    plain: float = 0.5
    partitions: int = 6
    rows: int = 25
    times: int = 6
    empty: float = 0.05
    """How often a number is empty."""


class RandomRows:
    """Contents of layers over `MIXED`: few partitions, few keys, few timestamps, so that all of it meets."""

    def __init__(self, seed: int, mix: Mix | None = None) -> None:
        self.rng = Random(seed)
        self.mix = mix or Mix()
        self.schema = MIXED

    def layer(self) -> list[Item]:
        """Items in key order."""
        found: dict[bytes, bytes] = {}
        few = 0 if self.rng.random() < 0.05 else self.mix.rows // 2
        for _ in range(self.rng.randrange(few, self.mix.rows + 1)):
            prefix = stored_prefix([f"p{self.rng.randrange(self.mix.partitions)}".encode()])
            if self.rng.random() < 0.1 * (1 - self.mix.plain):
                found[head_key(prefix)] = encode_head(self._head(), self.schema.version)
                continue
            row = self._plain() if self.rng.random() < self.mix.plain else self._other()
            found[row_key(prefix, self._clustering())] = encode_row(row, self.schema.version, self.schema.layouts[-1])
        return sorted(found.items())

    def _clustering(self, parts: int = 2) -> bytes:
        values = [self.rng.randrange(3).to_bytes(4), self.rng.choice([b"", b"a", b"\0", b"b\0c"])]
        return encode_clustering(self.schema.clustering, values[:parts])

    def _time(self) -> int:
        return self.rng.randrange(1, self.mix.times)

    def _value(self, name: str) -> bytes:
        return self._or_empty(self.schema.column(name).type)

    def _or_empty(self, kind: CqlType) -> bytes:
        value = random_value(self.rng, kind)
        may_be_empty = isinstance(kind, ScalarType) and kind.scalar in EMPTIABLE
        return b"" if may_be_empty and self.rng.random() < self.mix.empty else value

    def _plain(self) -> Row:
        time = self._time()
        names = ["w", "x", "y", "z"]
        if self.rng.random() < 0.5:
            names = self.rng.sample(names, self.rng.randrange(5))
        marker = RowMarker(time) if self.rng.random() < 0.7 or not names else None
        return Row(
            marker=marker,
            deletion=None,
            cells={self.schema.column(name).number: Cell(timestamp_us=time, value=self._value(name)) for name in names},
        )

    def _other(self) -> Row:
        cells = {self.schema.column(name).number: self._cell(name) for name in self.rng.sample("wxyz", 2)}
        if self.rng.random() < 0.2:
            return Row(marker=None, deletion=self._deletion())
        collections = {}
        if self.rng.random() < 0.6:
            name = self.rng.choice("ml")
            collections[self.schema.column(name).number] = self._elements(name)
        marker = self.rng.choice([None, RowMarker(self._time()), RowMarker(self._time(), 5, self._at())])
        return Row(
            marker=marker,
            deletion=None,
            cells=cells,
            collections={number: one for number, one in collections.items() if one != CollectionCells()},
        )

    def _cell(self, name: str) -> Cell:
        return self.rng.choice(
            [
                Cell(timestamp_us=self._time(), value=self._value(name)),
                Cell(timestamp_us=self._time(), value=None, ttl_s=0, at_s=self._at()),
                Cell(timestamp_us=self._time(), value=self._value(name), ttl_s=5, at_s=self._at()),
            ]
        )

    def _elements(self, name: str) -> CollectionCells:
        deletion = self._deletion() if self.rng.random() < 0.5 else None
        number = self._or_empty(ScalarType(Scalar.INT))
        cells = {path: Cell(timestamp_us=self._time(), value=number) for path in self.rng.sample([b"a", b"b", b"c"], 2)}
        if name == "m" and self.rng.random() < 0.3:
            cells[b"d"] = Cell(timestamp_us=self._time(), value=None, ttl_s=0, at_s=self._at())
        kept = {at: cell for at, cell in cells.items() if deletion is None or not deletion.covers(cell.timestamp_us)}
        return CollectionCells(deletion, kept)

    def _head(self) -> PartitionHead:
        number = self.schema.column("s").number
        static = Row(marker=None, deletion=None, cells={number: self._cell("w")}) if self.rng.random() < 0.6 else Row()
        ranges = []
        if self.rng.random() < 0.6:
            start, end = sorted((self._clustering(1), self._clustering(1)))
            ranges.append(RangeDeletion(start, self.rng.choice([end + b"\xff" * 20, None]), self._deletion()))
        deletion = self._deletion() if self.rng.random() < 0.3 else None
        return merge_heads(PartitionHead(deletion, tuple(ranges), static), EMPTY_HEAD)

    def _deletion(self) -> Deletion:
        return Deletion(self._time(), self._at())

    def _at(self) -> int:
        return self.rng.randrange(20)


def layer_facts(schema: TableSchema, items: Sequence[Item]) -> LayerFacts:
    return facts_of((value for _, value in items), schema)


def arrow_column(kind: CqlType, values: Sequence[bytes | None]) -> pa.Array:
    """Typed values, one by one: what the vector operations are compared with."""
    python = [None if value is None else _for_arrow(kind, decode(kind, value)) for value in values]
    return pa.array(python, number_type(kind)).cast(arrow_type(kind))


def _for_arrow(kind: CqlType, value: Any) -> Any:
    match kind:
        case _ if value is None:
            return None
        case ScalarType(scalar=Scalar.UUID | Scalar.TIMEUUID):
            return value.bytes
        case ScalarType(scalar=Scalar.INET | Scalar.VARINT | Scalar.DECIMAL):
            return str(value)
        case ScalarType(scalar=Scalar.DURATION):
            return pa.MonthDayNano(tuple(value))
        case ListType(element=element) | SetType(element=element):
            return [_for_arrow(element, one) for one in value]
        case MapType(key=key, value=inner):
            return [(_for_arrow(key, left), _for_arrow(inner, right)) for left, right in value]
        case TupleType(elements=elements):
            return {f"_{number}": _for_arrow(one, part) for number, (one, part) in enumerate(zip(elements, value), 1)}
        case _:
            return value

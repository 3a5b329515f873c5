"""The changes of a statement to one row, as cells of the data model. Pure.

Every change is a function that writes into a `RowBuilder`; a statement is a list of changes. A null is a tombstone;
an unset value leaves no trace. Assigning a whole collection deletes the old elements with a timestamp that is one
microsecond older than that of the new elements.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.cql.plan.binder import BoundRequest, ValueSource
from ebla.model.cql_types import CqlType, ListType, MapType, SetType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, CollectionCells, Deletion, list_path, merge_collections
from ebla.model.schema import Column
from ebla.model.values import split_elements
from ebla.wire.cql.messages import Unset

PREPENDED = 1 << 63
_PLACE_BITS, _TURN_BITS, _ORDER_BITS = 24, 16, 39
"""The lower half of a list element's path: the change that wrote it, and the position in that change."""

ListElements = dict[int, list[tuple[bytes, bytes]]]
"""Live elements of a row's lists by column number: paths and values, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTimes:
    timestamp_us: int
    ttl_s: int
    now_s: int
    sequence: int = 0
    """Index of the statement in its batch. It orders statements that append to one list at the same timestamp."""

    @property
    def expires_s(self) -> int:
        return self.now_s + self.ttl_s if self.ttl_s else 0

    def live(self, value: bytes) -> Cell:
        return Cell(timestamp_us=self.timestamp_us, value=value, ttl_s=self.ttl_s, at_s=self.expires_s)

    def dead(self) -> Cell:
        return Cell(timestamp_us=self.timestamp_us, value=None, ttl_s=0, at_s=self.now_s)

    def deletion(self) -> Deletion:
        return Deletion(self.timestamp_us, self.now_s)

    def deletion_before(self) -> Deletion:
        return Deletion(self.timestamp_us - 1, self.now_s)


@dataclass(slots=True, kw_only=True)
class RowBuilder:
    """Collects the changed cells of one row, or of a partition's static row."""

    times: CellTimes
    cells: dict[int, Cell] = field(default_factory=dict)
    collections: dict[int, CollectionCells] = field(default_factory=dict)
    turn: int = 0
    """Index of the change in its statement."""
    known_lists: ListElements = field(default_factory=dict)
    """The lists that were read before the write."""

    def add_elements(self, number: int, cells: dict[bytes, Cell], deletion: Deletion | None = None) -> None:
        """Two changes of one element in a statement have one timestamp and follow the tie rule, as in a batch."""
        before, added = self.collections.get(number), CollectionCells(deletion, cells)
        self.collections[number] = added if before is None else merge_collections(before, added)

    @property
    def order(self) -> int:
        """Position of this change among all changes of the batch."""
        return self.times.sequence << _TURN_BITS | self.turn


RowChange = Callable[[RowBuilder, BoundRequest], None]


def assign(column: Column, source: ValueSource) -> RowChange:
    """`column = value`."""
    number = column.number
    if is_multi_cell(column.type):
        return _assign_collection(column, source)

    def change(builder: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if isinstance(value, Unset):
            return
        builder.cells[number] = builder.times.dead() if value is None else builder.times.live(value)

    return change


def _assign_collection(column: Column, source: ValueSource) -> RowChange:
    number, kind = column.number, column.type

    def change(builder: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if isinstance(value, Unset):
            return
        if value is None:
            builder.add_elements(number, {}, builder.times.deletion())
            return
        builder.add_elements(number, element_cells(column, kind, value, builder), builder.times.deletion_before())

    return change


def element_cells(column: Column, kind: CqlType, value: bytes, builder: RowBuilder) -> dict[bytes, Cell]:
    """The cells of a whole collection in wire form."""
    times = builder.times
    match kind:
        case ListType():
            parts = [_element(column, part) for part in split_elements(value, 1)]
            first = builder.order << _PLACE_BITS
            return {list_path(times.timestamp_us, first + place): times.live(part) for place, part in enumerate(parts)}
        case SetType():
            return {_element(column, part): times.live(b"") for part in split_elements(value, 1)}
        case MapType():
            parts_of_map = split_elements(value, 2)
            return {
                _element(column, key): times.live(_element(column, part))
                for key, part in zip(parts_of_map[::2], parts_of_map[1::2])
            }
        case _:
            raise AssertionError(f"a {kind} has one cell")


def _element(column: Column, part: bytes | None) -> bytes:
    if part is None:
        raise InvalidRequest(f"null is not supported inside collections ({column.name})")
    return part


# ---- changes of elements


def _with_value(source: ValueSource, work: Callable[[RowBuilder, bytes], None]) -> RowChange:
    """A change that a null or unset value does not make."""

    def change(builder: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if value is not None and not isinstance(value, Unset):
            work(builder, value)

    return change


def append(column: Column, source: ValueSource) -> RowChange:
    """`c = c + value`: adds elements."""

    def work(builder: RowBuilder, value: bytes) -> None:
        builder.add_elements(column.number, element_cells(column, column.type, value, builder))

    return _with_value(source, work)


def prepend(column: Column, source: ValueSource) -> RowChange:
    """`l = value + l`. Paths count down, so that later elements come first."""

    def work(builder: RowBuilder, value: bytes) -> None:
        front = (PREPENDED - builder.times.timestamp_us).to_bytes(8)
        first = ((1 << _ORDER_BITS) - 1 - builder.order) << _PLACE_BITS
        cells = {
            front + (first + place).to_bytes(8): builder.times.live(_element(column, part))
            for place, part in enumerate(split_elements(value, 1))
        }
        builder.add_elements(column.number, cells)

    return _with_value(source, work)


def remove_elements(column: Column, source: ValueSource) -> RowChange:
    """`c = c - value`: removes elements of a set, keys of a map, or all list elements with one of the values."""

    def work(builder: RowBuilder, value: bytes) -> None:
        paths = [_element(column, part) for part in split_elements(value, 1)]
        if isinstance(column.type, ListType):
            paths = [path for path, found in builder.known_lists.get(column.number, ()) if found in paths]
        builder.add_elements(column.number, {path: builder.times.dead() for path in paths})

    return _with_value(source, work)


def assign_element(column: Column, key: ValueSource, source: ValueSource) -> RowChange:
    """`m[key] = value`, `l[index] = value`; a null deletes the element."""
    number = column.number

    def change(builder: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if isinstance(value, Unset):
            return
        path = _element_path(builder, column, key(request), "set an element on")
        builder.add_elements(number, {path: builder.times.dead() if value is None else builder.times.live(value)})

    return change


def delete_element(column: Column, key: ValueSource) -> RowChange:
    """`DELETE c[key]`; for a set, the key is the element."""
    number = column.number

    def change(builder: RowBuilder, request: BoundRequest) -> None:
        value = key(request)
        if isinstance(value, Unset) and isinstance(column.type, ListType):
            return
        path = _element_path(builder, column, value, "delete an element from")
        builder.add_elements(number, {path: builder.times.dead()})

    return change


def delete_column(column: Column) -> RowChange:
    number = column.number
    if is_multi_cell(column.type):
        return lambda builder, _request: builder.add_elements(number, {}, builder.times.deletion())

    def change(builder: RowBuilder, _request: BoundRequest) -> None:
        builder.cells[number] = builder.times.dead()

    return change


def _element_path(builder: RowBuilder, column: Column, key: bytes | Unset | None, act: str) -> bytes:
    """The path of an element, by key or index."""
    word = "list index" if isinstance(column.type, ListType) else "map key"
    if key is None:
        raise InvalidRequest(f"Invalid null value for {word} of {column.name}")
    if isinstance(key, Unset):
        raise InvalidRequest(f"Invalid unset value for {word} of {column.name}")
    if not isinstance(column.type, ListType):
        return key
    if not key:
        raise InvalidRequest(f"Invalid empty value for {word} of {column.name}")
    known = builder.known_lists.get(column.number, [])
    index = int.from_bytes(key, signed=True)
    if not known:
        raise InvalidRequest(f"Attempted to {act} a list which is null ({column.name})")
    if not 0 <= index < len(known):
        raise InvalidRequest(f"List index {index} out of bound, list has size {len(known)}")
    return known[index][0]

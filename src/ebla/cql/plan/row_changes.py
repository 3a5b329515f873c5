"""What a statement changes in one row, as cells of the data model. Pure.

Every change is a function that writes into a `RowBuilder` of the row; a statement is a list of them. A null is a
tombstone,
what is not given leaves no trace. Assigning a whole collection deletes what was there, one microsecond older than the
elements it brings.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.cql.plan.binder import BoundRequest, ValueSource
from ebla.model.cql_types import CqlType, ListType, MapType, SetType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, CollectionCells, Deletion, list_path
from ebla.model.schema import Column
from ebla.model.values import split_elements
from ebla.wire.cql.messages import Unset

PREPENDED = 1 << 63
ELEMENT_BYTES_MAX = 65_535
_PLACE_BITS, _TURN_BITS, _ORDER_BITS = 24, 16, 39
"""The lower half of a list element's path: which change wrote it, and its place in that."""

ListElements = dict[int, list[tuple[bytes, bytes]]]
"""Live elements of a row's lists by column number: path and value, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTimes:
    timestamp_us: int
    ttl_s: int
    now_s: int
    sequence: int = 0
    """Of the statement in its batch: those that add to one list all have the same time."""

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
    """The changed cells of one row, or of a partition's static part, while they are gathered."""

    times: CellTimes
    cells: dict[int, Cell] = field(default_factory=dict)
    collections: dict[int, CollectionCells] = field(default_factory=dict)
    turn: int = 0
    """Of the change in its statement."""
    known_lists: ListElements = field(default_factory=dict)
    """Of lists that had to be read first."""

    def add_elements(self, number: int, cells: dict[bytes, Cell], deletion: Deletion | None = None) -> None:
        before = self.collections.get(number, CollectionCells())
        newest = before.deletion if deletion is None else deletion
        self.collections[number] = CollectionCells(newest, {**before.cells, **cells})

    @property
    def order(self) -> int:
        """Of this change among those of one batch."""
        return self.times.sequence << _TURN_BITS | self.turn


RowChange = Callable[[RowBuilder, BoundRequest], None]


def assign(column: Column, source: ValueSource) -> RowChange:
    """`column = value`."""
    number = column.number
    if is_multi_cell(column.type):
        return _assign_collection(column, source)

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if isinstance(value, Unset):
            return
        draft.cells[number] = draft.times.dead() if value is None else draft.times.live(value)

    return change


def _assign_collection(column: Column, source: ValueSource) -> RowChange:
    number, kind = column.number, column.type

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if isinstance(value, Unset):
            return
        if value is None:
            draft.add_elements(number, {}, draft.times.deletion())
            return
        draft.add_elements(number, element_cells(column, kind, value, draft), draft.times.deletion_before())

    return change


def element_cells(column: Column, kind: CqlType, value: bytes, draft: RowBuilder) -> dict[bytes, Cell]:
    """The cells of a collection given whole, in wire form."""
    times = draft.times
    match kind:
        case ListType():
            parts = [_element(column, part) for part in split_elements(value, 1)]
            first = draft.order << _PLACE_BITS
            return {list_path(times.timestamp_us, first + place): times.live(part) for place, part in enumerate(parts)}
        case SetType():
            return {_path(column, part): times.live(b"") for part in split_elements(value, 1)}
        case MapType():
            parts_of_map = split_elements(value, 2)
            return {
                _path(column, key): times.live(_element(column, part))
                for key, part in zip(parts_of_map[::2], parts_of_map[1::2])
            }
        case _:
            raise AssertionError(f"a {kind} has one cell")


def _element(column: Column, part: bytes | None) -> bytes:
    if part is None:
        raise InvalidRequest(f"null is not supported inside collections ({column.name})")
    return part


def _path(column: Column, part: bytes | None) -> bytes:
    found = _element(column, part)
    if len(found) > ELEMENT_BYTES_MAX:
        what = "Map keys" if isinstance(column.type, MapType) else "Set elements"
        raise InvalidRequest(
            f"{what} of {column.name} are limited to {ELEMENT_BYTES_MAX} bytes but {len(found)} bytes were provided"
        )
    return found


# ---- changes of parts


def append(column: Column, source: ValueSource) -> RowChange:
    """`c = c + value`: elements join those that are there."""
    number, kind = column.number, column.type

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if value is None or isinstance(value, Unset):
            return
        draft.add_elements(number, element_cells(column, kind, value, draft))

    return change


def prepend(column: Column, source: ValueSource) -> RowChange:
    """`l = value + l`. Paths count down, so that what is prepended later stands before."""
    number = column.number

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if value is None or isinstance(value, Unset):
            return
        front = (PREPENDED - draft.times.timestamp_us).to_bytes(8)
        first = ((1 << _ORDER_BITS) - 1 - draft.order) << _PLACE_BITS
        parts = [_element(column, part) for part in split_elements(value, 1)]
        draft.add_elements(
            number, {front + (first + place).to_bytes(8): draft.times.live(part) for place, part in enumerate(parts)}
        )

    return change


def remove_elements(column: Column, source: ValueSource) -> RowChange:
    """`c = c - value`: from a set its elements, from a map its keys; from a list every element of such a value."""
    number, kind = column.number, column.type

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if value is None or isinstance(value, Unset):
            return
        parts = [_element(column, part) for part in split_elements(value, 1)]
        if isinstance(kind, ListType):
            paths = [path for path, found in draft.known_lists.get(number, ()) if found in parts]
        else:
            paths = parts
        draft.add_elements(number, {path: draft.times.dead() for path in paths})

    return change


def assign_element(column: Column, key: ValueSource, source: ValueSource) -> RowChange:
    """`m[key] = value`, `l[index] = value`; a null deletes it."""
    number = column.number

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        value = source(request)
        if isinstance(value, Unset):
            return
        path = _place(draft, column, key(request), "set an element on")
        draft.add_elements(number, {path: draft.times.dead() if value is None else draft.times.live(value)})

    return change


def delete_element(column: Column, key: ValueSource) -> RowChange:
    """`DELETE c[key]`; from a set, the element itself."""
    number = column.number

    def change(draft: RowBuilder, request: BoundRequest) -> None:
        path = _place(draft, column, key(request), "delete an element from")
        draft.add_elements(number, {path: draft.times.dead()})

    return change


def delete_column(column: Column) -> RowChange:
    number = column.number
    if is_multi_cell(column.type):
        return lambda draft, _request: draft.add_elements(number, {}, draft.times.deletion())

    def change(draft: RowBuilder, _request: BoundRequest) -> None:
        draft.cells[number] = draft.times.dead()

    return change


def _place(draft: RowBuilder, column: Column, key: bytes | Unset | None, act: str) -> bytes:
    """The path of an element by its key or index."""
    word = "list index" if isinstance(column.type, ListType) else "map key"
    if key is None:
        raise InvalidRequest(f"Invalid null value for {word} of {column.name}")
    if isinstance(key, Unset):
        raise InvalidRequest(f"Invalid unset value for {word} of {column.name}")
    if not isinstance(column.type, ListType):
        return _path(column, key)
    known = draft.known_lists.get(column.number, [])
    index = int.from_bytes(key, signed=True)
    if not known:
        raise InvalidRequest(f"Attempted to {act} a list which is null ({column.name})")
    if not 0 <= index < len(known):
        raise InvalidRequest(f"List index {index} out of bound, list has size {len(known)}")
    return known[index][0]

"""The answers that row clients got, and whether the rows they read can be right.

Every write has a unique timestamp, and a value that repeats it. Consistency levels that overlap (a quorum written and a
quorum read; all written and one read; one written and all read) give a lower bound for what a read may return:

    INV-ROWS-5  a read returns, for each cell, the newest write acknowledged at an overlapping level before it began, or
                one with a later timestamp
    INV-ROWS-6  a value that a read at QUORUM returned, a later read at QUORUM returns too, or a newer one
    INV-ROWS-7  a returned value was written, with this timestamp
    INV-ROWS-8  a write whose caller got "not applied" is never returned
    INV-ROWS-9  a scan returns each row once, in token order, and misses none
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError, Outcome

Cell = tuple[str, int, int]
"""A table, a partition, a row. Each row has one column that is written."""

QUORUMS = (Level.QUORUM, Level.EACH_QUORUM, Level.LOCAL_QUORUM)
AT_LEAST_QUORUM = (*QUORUMS, Level.ALL)
UNSYNCED_S_MAX = 12.0
"""How long a write that a read has returned may be only in the memory of a replica (see `died`): longer than its sync
takes on the slowest disk of a storm."""


@dataclass(slots=True, kw_only=True)
class AttemptedWrite:
    timestamp_us: int
    deletes: bool
    shown: bool = False
    refused: str = ""


@dataclass(slots=True, kw_only=True)
class _Place:
    tried: dict[int, AttemptedWrite] = field(default_factory=dict)
    by_any: int = 0
    """The newest timestamp acknowledged at any level; at a quorum or more; at ALL."""
    by_quorum: int = 0
    by_all: int = 0
    shown: dict[int, float] = field(default_factory=dict)
    """Timestamps above `by_quorum` that reads at a quorum returned, and when last."""

    def floor(self, level: Level) -> int:
        if level is Level.ALL:
            return max(self.by_any, self.by_quorum, max(self.shown, default=0))
        if level in QUORUMS:
            return max(self.by_quorum, max(self.shown, default=0))
        return self.by_all


CellFloors = Mapping[Cell, int]
ShownCells = Mapping[Cell, int]
"""The timestamp of the value returned for each cell. Other cells were empty."""


@dataclass(frozen=True, slots=True)
class ReadInterval:
    level: Level
    began: float
    ended: float


@dataclass(slots=True, kw_only=True)
class RowsLedger:
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    reads: int = 0
    scans: int = 0
    failed_reads: int = 0
    _places: dict[Cell, _Place] = field(default_factory=dict)
    _used_us: dict[int, None] = field(default_factory=dict)
    _died_at: float = 0.0

    def unique_us(self, wanted_us: int) -> int:
        while wanted_us in self._used_us:
            wanted_us += 1
        self._used_us[wanted_us] = None
        return wanted_us

    def held_by_quorum(self, table: str) -> dict[Cell, int]:
        """The timestamps of values that a quorum has acknowledged and that nothing may have deleted."""
        return {
            cell: place.by_quorum
            for cell, place in self._places.items()
            if cell[0] == table
            and place.by_quorum
            and not any(one.deletes and at_us >= place.by_quorum for at_us, one in place.tried.items())
        }

    def cells(self, table: str) -> list[Cell]:
        return [cell for cell in self._places if cell[0] == table]

    # -- writes ------------------------------------------------------------------------------------------------------

    def tries(self, cell: Cell, tried: AttemptedWrite) -> None:
        self._place(cell).tried[tried.timestamp_us] = tried

    def was_acknowledged(self, cell: Cell, tried: AttemptedWrite, level: Level) -> None:
        place, timestamp_us = self._place(cell), tried.timestamp_us
        self.acknowledged += 1
        place.by_any = max(place.by_any, timestamp_us)
        if level in AT_LEAST_QUORUM:
            place.by_quorum = max(place.by_quorum, timestamp_us)
        if level is Level.ALL:
            place.by_all = max(place.by_all, timestamp_us)

    def failed(self, cell: Cell, tried: AttemptedWrite, error: EblaError) -> str | None:
        if error.outcome is Outcome.UNKNOWN:
            self.unknown += 1
            return None
        self.refused += 1
        tried.refused = f"{type(error).__name__}: {error}"
        if tried.shown:
            return f"INV-ROWS-8: {cell}: {tried} was returned before its caller got that"
        return None

    # -- reads -------------------------------------------------------------------------------------------------------

    def floors(self, cells: Sequence[Cell], level: Level) -> CellFloors:
        """Call this before the read leaves."""
        return {cell: self._place(cell).floor(level) for cell in cells}

    def died(self, now: float) -> None:
        """A replica died. Values returned lately may have been only in its memory and not yet acknowledged: a replica
        returns a write whose sync is still running."""
        self._died_at = now
        for place in self._places.values():
            if place.shown:
                place.shown = {at_us: when for at_us, when in place.shown.items() if now - when > UNSYNCED_S_MAX}

    def check_shown(self, floors: CellFloors, shown: ShownCells, read: ReadInterval) -> str | None:
        """The problem with the values of an answer. Missing values are not checked."""
        for cell, at_us in shown.items():
            if cell not in floors:
                return f"INV-ROWS-7: {cell} was returned, but was not requested or never written"
            place = self._place(cell)
            problem = self._value(cell, place, at_us, floors[cell])
            if problem is not None:
                return f"{problem}, read at {read.level.name}"
            if read.level in AT_LEAST_QUORUM and at_us > place.by_quorum and read.began > self._died_at:
                place.shown[at_us] = read.ended
        return None

    def check_missing(self, floors: CellFloors, shown: ShownCells, read: ReadInterval) -> str | None:
        """The problem with the values that a complete read left out."""
        for cell, floor in floors.items():
            problem = self._nothing(cell, self._place(cell), floor) if cell not in shown else None
            if problem is not None:
                return f"{problem}, read at {read.level.name}"
        return None

    def _nothing(self, cell: Cell, place: _Place, floor: int) -> str | None:
        if not floor:
            return None
        deleted = any(one.deletes and one.timestamp_us >= floor and not one.refused for one in place.tried.values())
        return None if deleted else f"INV-ROWS-5: {cell} is empty, but {_describe(place, floor)} must be there"

    def _value(self, cell: Cell, place: _Place, at_us: int, floor: int) -> str | None:
        found = place.tried.get(at_us)
        if found is None or found.deletes:
            return f"INV-ROWS-7: {cell} has {at_us}, which was never written"
        found.shown = True
        if found.refused:
            return f"INV-ROWS-8: {cell} has {found}"
        if at_us >= floor:
            return None
        label = "INV-ROWS-5" if floor <= max(place.by_quorum, place.by_any) else "INV-ROWS-6"
        return f"{label}: {cell} has {found}, but {_describe(place, floor)} is newer"

    def _place(self, cell: Cell) -> _Place:
        found = self._places.get(cell)
        if found is None:
            found = self._places[cell] = _Place()
        return found


def _describe(place: _Place, floor: int) -> str:
    how = "acknowledged" if floor in (place.by_any, place.by_quorum, place.by_all) else "shown"
    return f"{place.tried.get(floor)}, {how},"

"""What a store was given to keep, and whether what it returns can be right.

Every version has a unique timestamp, so a returned value identifies its write. A place (one cell of one replica) may
return the newest answered version or a newer attempted one, nothing else. A tombstone whose grace period has passed may
be dropped, and then the place is empty. `INV-LAYER-GC`: data that a tombstone covered never reappears.
"""

from dataclasses import dataclass, field

from ebla.storage.manifest import Incarnation

Cell = tuple[Incarnation, int, int]
"""A replica, a partition, a row."""


@dataclass(slots=True, kw_only=True)
class AttemptedStoreWrite:
    timestamp_us: int
    deletes: bool
    at_s: int
    answered: bool = False


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """The newest version stored at a place: a value or a tombstone."""

    timestamp_us: int
    deletes: bool


@dataclass(slots=True)
class _Place:
    tried: dict[int, AttemptedStoreWrite] = field(default_factory=dict)

    def newest_answered(self) -> AttemptedStoreWrite | None:
        answered = [one for one in self.tried.values() if one.answered]
        return max(answered, key=lambda one: one.timestamp_us, default=None)


@dataclass(slots=True, kw_only=True)
class StoreLedger:
    grace_s: int
    answers: int = 0
    checks: int = 0
    _places: dict[Cell, _Place] = field(default_factory=dict)
    _used_us: set[int] = field(default_factory=set)
    _replicas: dict[Incarnation, bool] = field(default_factory=dict)
    """The replicas that must exist. True: it is being dropped."""

    def unique_us(self, wanted_us: int) -> int:
        while wanted_us in self._used_us:
            wanted_us += 1
        self._used_us.add(wanted_us)
        return wanted_us

    # -- replicas --------------------------------------------------------------------------------------------------

    def made(self, replica: Incarnation) -> None:
        self._replicas.setdefault(replica, False)

    def dropping(self, replica: Incarnation) -> None:
        self._replicas[replica] = True

    def dropped(self, replica: Incarnation) -> None:
        self._replicas.pop(replica, None)

    def check_replicas(self, there: list[Incarnation]) -> str | None:
        """The problem at a start. Replicas that were being dropped may exist or not."""
        lost = [one for one, dropping in self._replicas.items() if not dropping and one not in there]
        self._replicas = {one: self._replicas.get(one, False) for one in there}
        return f"replica {lost[0]:016x} is gone" if lost else None

    # -- versions --------------------------------------------------------------------------------------------------

    def tries(self, cell: Cell, tried: AttemptedStoreWrite, seen: StoredVersion | None, now_s: int) -> str | None:
        """Call this in the step of the write, with the version before it. If a tombstone would cover this version but
        has been dropped after its grace period, this version is the newer state of the place."""
        place = self._places.setdefault(cell, _Place())
        newest = place.newest_answered()
        problem = None
        would_cover = newest is not None and newest.timestamp_us > tried.timestamp_us
        if would_cover and (seen is None or seen.timestamp_us < tried.timestamp_us):
            problem = self._forget(cell, place, now_s)
        place.tried[tried.timestamp_us] = tried
        return problem

    def _forget(self, cell: Cell, place: _Place, now_s: int) -> str | None:
        newest = place.newest_answered()
        assert newest is not None
        if not newest.deletes or newest.at_s + self.grace_s > now_s:
            return f"{cell}: the answered version {newest} is gone"
        place.tried = {}
        return None

    def answered(self, cell: Cell, timestamp_us: int) -> None:
        self.answers += 1
        found = self._places[cell].tried.get(timestamp_us)
        if found is not None:
            found.answered = True

    def refused(self, cell: Cell, timestamp_us: int) -> None:
        self._places[cell].tried.pop(timestamp_us, None)

    def newest_answered_us(self) -> dict[Cell, int]:
        """For every place, for a later `check_copy` of a copy taken now."""
        newest = {cell: place.newest_answered() for cell, place in self._places.items()}
        return {cell: one.timestamp_us for cell, one in newest.items() if one is not None}

    def check_copy(self, cell: Cell, seen: StoredVersion | None, newest_us: int, now_s: int) -> str | None:
        """The problem with a copy that began when `newest_us` was the newest answer. Later answers may be in it or
        not."""
        found = self._places[cell].tried.get(newest_us)
        if found is None or (found.deletes and found.at_s + self.grace_s <= now_s):
            return None
        if seen is None or seen.timestamp_us < newest_us:
            return f"{cell}: a checkpoint has {seen}, and {found} was answered before it began"
        return None

    def cells(self, replica: Incarnation) -> list[Cell]:
        return [cell for cell in self._places if cell[0] == replica]

    def check(self, cell: Cell, seen: StoredVersion | None, now_s: int, *, durable: bool = False) -> str | None:
        """The problem with this version, if any. `durable`: it was read after a start, so it must stay."""
        place = self._places.setdefault(cell, _Place())
        newest = place.newest_answered()
        may_be_dropped = newest is not None and newest.deletes and newest.at_s + self.grace_s <= now_s
        if seen is None:
            if newest is None or may_be_dropped:
                return None
            return f"{cell}: the answered version {newest} is lost"
        found = place.tried.get(seen.timestamp_us)
        if found is None or found.deletes != seen.deletes:
            return f"{cell}: {seen} was never written"
        if newest is not None and newest.timestamp_us > seen.timestamp_us:
            if seen.deletes and may_be_dropped:
                # An older tombstone that arrived later must wait longer: the cell is deleted by either.
                return None
            word = "revived (INV-LAYER-GC)" if newest.deletes else "old"
            return f"{cell}: {seen} is {word}, {newest} was answered"
        if durable:
            found.answered = True
        return None

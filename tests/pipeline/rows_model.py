"""A dict model of a table after jobs and statements: the newest write of each cell wins; at equal timestamps a deletion
beats a value, and of two values the one with the larger bytes wins."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("a", "b")
TABLE = "(p int, c int, s text static, a int, b text, PRIMARY KEY (p, c))"
SCHEMA = "p int, c int, s string, a int, b string, what string"
"""The schema of the jobs' DataFrames."""
SELECTED = "p, c, s, a, b"
MARK = ""
"""The name of a row's marker cell, by which a row exists without any value."""

InputRow = tuple[int, int | None, str | None, int | None, str | None, str | None]
"""p, c, s, a, b, and the operation of the row."""
Key = tuple[int, int | None, str]
"""A cell: its partition, its row (none: static) and its column."""


def bytes_of(value: object) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(4, signed=True)
    return str(value).encode()


@dataclass(frozen=True, slots=True)
class Written:
    time: int
    is_deleted: bool
    value: Any = None

    @property
    def rank(self) -> tuple[int, bool, bytes]:
        return self.time, self.is_deleted, b"" if self.is_deleted else bytes_of(self.value)


@dataclass(slots=True)
class RowsModel:
    """Timestamps are the test's: the job that began first has the smaller one."""

    cells: dict[Key, Written] = field(default_factory=dict)
    rows_deleted: dict[tuple[int, int], int] = field(default_factory=dict)
    partitions_deleted: dict[int, int] = field(default_factory=dict)

    def apply(self, time: int, rows: Sequence[InputRow], *, nulls_delete: bool = False) -> None:
        for p, c, s, a, b, what in rows:
            if what == "delete_partition":
                self.partitions_deleted[p] = max(time, self.partitions_deleted.get(p, time))
            elif what == "delete":
                assert c is not None
                self.rows_deleted[p, c] = max(time, self.rows_deleted.get((p, c), time))
            else:
                values: Mapping[Key, Any] = {(p, None, "s"): s}
                if c is not None:
                    values = {**values, (p, c, MARK): 0, (p, c, "a"): a, (p, c, "b"): b}
                for key, value in values.items():
                    if value is not None or nulls_delete:
                        self._put(key, Written(time, value is None, value))

    def clear(self) -> None:
        for kept in (self.cells, self.rows_deleted, self.partitions_deleted):
            kept.clear()

    def _put(self, key: Key, written: Written) -> None:
        known = self.cells.get(key)
        if known is None or written.rank > known.rank:
            self.cells[key] = written

    def _value(self, key: Key) -> Any:
        found = self.cells.get(key)
        if found is None or found.is_deleted:
            return None
        p, c, _ = key
        covered = [self.partitions_deleted.get(p, -1)]
        if c is not None:
            covered.append(self.rows_deleted.get((p, c), -1))
        return None if found.time <= max(covered) else found.value

    def visible(self) -> list[tuple[Any, ...]]:
        """The rows that a SELECT returns."""
        shown = []
        for p in sorted({key[0] for key in self.cells}):
            static = self._value((p, None, "s"))
            clustered = sorted({key[1] for key in self.cells if key[0] == p and key[1] is not None})
            rows = [(c, *(self._value((p, c, name)) for name in (MARK, *COLUMNS))) for c in clustered]
            there = [(p, c, static, a, b) for c, mark, a, b in rows if (mark, a, b) != (None, None, None)]
            shown += there or ([(p, None, static, None, None)] if static is not None else [])
        return shown


def random_rows(rng: random.Random, count: int) -> list[InputRow]:
    """Few keys, so that writes collide; some keys twice in a job."""
    return [_random_row(rng) for _ in range(count)]


def _random_row(rng: random.Random) -> InputRow:
    p, c = rng.randrange(12), rng.randrange(6)
    what = rng.choices(["upsert", None, "delete", "delete_partition", "static"], [60, 20, 12, 3, 5])[0]
    a = rng.choice([None, rng.randrange(-50, 50)])
    b = rng.choice([None, "", f"b{rng.randrange(100)}"])
    s = rng.choice([None, None, f"s{rng.randrange(100)}"])
    match what:
        case "static":
            return p, None, f"s{rng.randrange(100)}", None, None, "upsert"
        case "delete_partition":
            return p, None, None, None, None, what
        case "delete":
            return p, c, None, None, None, what
        case _:
            return p, c, s, a, b, what

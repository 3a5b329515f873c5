"""Sorted keys in short lists, so that an insertion costs the same however many keys there are.

Not `sortedcontainers`: its `copy` sorts again and takes 2.5 times as long, and a snapshot copies on the loop.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import lt

RUN_KEYS = 512
"""A run starts with this many keys and is split at twice as many."""
LAST_KEY = "\U0010ffff"


class SortedKeys:
    """Has no key twice: the caller knows which ones are new."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._runs = [ordered[start : start + RUN_KEYS] for start in range(0, len(ordered), RUN_KEYS)]
        self._firsts = [run[0] for run in self._runs]
        """A lower bound of each run: its least key, or a removed one that was the least."""

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def copy(self) -> "SortedKeys":
        copy = SortedKeys()
        copy._runs = [run.copy() for run in self._runs]
        copy._firsts = self._firsts.copy()
        return copy

    def extend(self, keys: Sequence[str]) -> bool:
        """Appends keys after the last one. False, and nothing happens, if that would break the order."""
        last = self._runs[-1][-1:] if self._runs else []
        if not all(map(lt, [*last, *keys], keys[0 if last else 1 :])):
            return False
        for start in range(0, len(keys), RUN_KEYS):
            self._runs.append(list(keys[start : start + RUN_KEYS]))
            self._firsts.append(keys[start])
        return True

    def add(self, key: str) -> None:
        if not self._runs:
            self._runs, self._firsts = [[key]], [key]
            return
        position = max(bisect_right(self._firsts, key) - 1, 0)
        run = self._runs[position]
        insort(run, key)
        if key < self._firsts[position]:
            self._firsts[position] = key
        if len(run) >= 2 * RUN_KEYS:
            later = run[RUN_KEYS:]
            del run[RUN_KEYS:]
            self._runs.insert(position + 1, later)
            self._firsts.insert(position + 1, later[0])

    def remove(self, key: str) -> None:
        position = bisect_right(self._firsts, key) - 1
        run = self._runs[position]
        del run[bisect_left(run, key)]
        if not run:
            del self._runs[position], self._firsts[position]

    def below(self, prefix: str) -> list[str]:
        """The keys that begin with the prefix, in order."""
        end = prefix + LAST_KEY
        selected: list[str] = []
        for position in range(max(bisect_right(self._firsts, prefix) - 1, 0), len(self._runs)):
            if self._firsts[position] > end:
                break
            run = self._runs[position]
            low = bisect_left(run, prefix)
            selected += run[low : bisect_left(run, end, low)]
        return selected

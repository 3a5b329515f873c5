"""Keys in order, in lists short enough that putting one more in between costs the same however many there are."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import lt

RUN_KEYS = 512
"""A run is made of this many keys and cut in two at twice as many."""
LAST_KEY = "\U0010ffff"


class SortedKeys:
    """No key stands in it twice: the caller knows which ones are new."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._runs = [ordered[start : start + RUN_KEYS] for start in range(0, len(ordered), RUN_KEYS)]
        self._firsts = [run[0] for run in self._runs]
        """The least key of each run, or one that was and is gone since: no key of the run is less."""

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def copy(self) -> "SortedKeys":
        copy = SortedKeys()
        copy._runs = [run.copy() for run in self._runs]
        copy._firsts = self._firsts.copy()
        return copy

    def extend(self, keys: Sequence[str]) -> bool:
        """Puts keys behind all that are there. False, and nothing happens, where they do not stand in order there."""
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
        place = max(bisect_right(self._firsts, key) - 1, 0)
        run = self._runs[place]
        insort(run, key)
        if key < self._firsts[place]:
            self._firsts[place] = key
        if len(run) >= 2 * RUN_KEYS:
            later = run[RUN_KEYS:]
            del run[RUN_KEYS:]
            self._runs.insert(place + 1, later)
            self._firsts.insert(place + 1, later[0])

    def remove(self, key: str) -> None:
        place = bisect_right(self._firsts, key) - 1
        run = self._runs[place]
        del run[bisect_left(run, key)]
        if not run:
            del self._runs[place], self._firsts[place]

    def below(self, prefix: str) -> list[str]:
        """Those that begin with the prefix, in order."""
        end = prefix + LAST_KEY
        found: list[str] = []
        for place in range(max(bisect_right(self._firsts, prefix) - 1, 0), len(self._runs)):
            if self._firsts[place] > end:
                break
            run = self._runs[place]
            low = bisect_left(run, prefix)
            found += run[low : bisect_left(run, end, low)]
        return found

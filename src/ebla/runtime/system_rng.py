"""Random numbers from the operating system: unpredictable, and not shared between processes."""

import os
import random
import uuid
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

T = TypeVar("T")


class SystemRng:
    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def random(self) -> float:
        return self._source.random()

    def randrange(self, start: int, stop: int) -> int:
        return self._source.randrange(start, stop)

    def choice(self, options: Sequence[T]) -> T:
        return self._source.choice(options)

    def shuffle(self, items: MutableSequence[T]) -> None:
        self._source.shuffle(items)

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=os.urandom(16), version=4)

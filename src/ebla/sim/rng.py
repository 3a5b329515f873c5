"""Random numbers from a seed. Each purpose has its own stream, so that an additional draw in one does not shift
others."""

import random
import uuid
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

T = TypeVar("T")


class SimRng:
    """`ports.rng.Rng`, with a few more draws that only the simulator needs."""

    __slots__ = ("_source", "_stream", "random")

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._source = random.Random(stream)  # seeding by text does not depend on PYTHONHASHSEED
        self.random = self._source.random

    def fork(self, purpose: str) -> "SimRng":
        return SimRng(f"{self._stream}/{purpose}")

    def randrange(self, start: int, stop: int) -> int:
        return self._source.randrange(start, stop)

    def choice(self, options: Sequence[T]) -> T:
        return self._source.choice(options)

    def shuffle(self, items: MutableSequence[T]) -> None:
        self._source.shuffle(items)

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        return self._source.sample(options, count)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._source.randbytes(16), version=4)

    def happens(self, probability: float) -> bool:
        # No draw when the answer is certain: this runs once per frame, and a disabled fault must cost nothing.
        return probability > 0.0 and (probability >= 1.0 or self.random() < probability)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def exponential(self, mean: float) -> float:
        return self._source.expovariate(1.0 / mean) if mean > 0.0 else 0.0

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        return self._source.choices(options, weights)[0]

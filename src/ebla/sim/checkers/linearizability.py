"""Is there an order in which the operations could have happened one at a time?

The algorithm of Wing and Gong, with Lowe's memory of configurations: choose an operation that may come next, take its
step in the model, go on; if nothing fits, backtrack. Keys are independent, so each is checked alone. A configuration
is the set of operations done so far and the state. Each is tried once.

An operation with an unknown outcome may happen at any time after its call, or never, so it stays a candidate for ever.
These are kept apart, or they would hold back the window of done operations.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ebla.sim.checkers.history import ClientOperation
from ebla.sim.checkers.models import SequentialModel

S = TypeVar("S", bound=Hashable)
CONFIGURATIONS_MAX = 3_000_000
STUCK_SHOWN_MAX = 12


class SearchGivenUp(AssertionError):
    """The search was given up without a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearizabilityViolation:
    """No order explains the history of this key. None of `stuck` could come next after the longest attempt."""

    key: str
    done: int
    total: int
    state: object
    stuck: tuple[ClientOperation, ...]

    def __str__(self) -> str:
        lines = [f"no order explains the history of {self.key or 'the object'}:"]
        lines.append(
            f"after {self.done} of {self.total} operations the state is {self.state!r}; none of these can follow:"
        )
        lines += [f"  {operation}" for operation in self.stuck[:STUCK_SHOWN_MAX]]
        return "\n".join(lines)


def find_violation(history: Iterable[ClientOperation], model: SequentialModel[S]) -> LinearizabilityViolation | None:
    by_key: dict[str, list[ClientOperation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    for key in sorted(by_key):
        violation = _Search(key, by_key[key], model).run()
        if violation is not None:
            return violation
    return None


class _Search(Generic[S]):
    """Configurations are plain tuples, for speed: `(base, ahead, guessed, state)`.

    The first `base` operations are done, and those whose bit is set in `ahead`, counted from `base`. `guessed` marks
    the operations with an unknown outcome that are assumed to have happened.
    """

    def __init__(self, key: str, operations: Sequence[ClientOperation], model: SequentialModel[S]) -> None:
        ordered = sorted(operations, key=lambda operation: operation.invoked)
        self._key = key
        self._step = model.step
        self._start = model.initial()
        self._known = [operation for operation in ordered if operation.returned is not None]
        self._unknown = [op for op in ordered if op.returned is None and model.changes(op)]
        self._changes = [model.changes(operation) for operation in self._known]
        self._calls = [operation.invoked for operation in self._known]
        self._returns = [operation.returned or 0.0 for operation in self._known]

    def run(self) -> LinearizabilityViolation | None:
        deepest: tuple[int, int, int, S] = (0, 0, 0, self._start)
        deepest_done = 0
        seen: set[tuple[int, int, int, S]] = set()
        stack = [deepest]
        total = len(self._known)
        while stack:
            now = stack.pop()
            if now[0] == total:
                return None
            if now in seen:
                continue
            seen.add(now)
            if len(seen) > CONFIGURATIONS_MAX:
                raise SearchGivenUp(f"{CONFIGURATIONS_MAX} configurations of {total} operations decide nothing")
            done = now[0] + now[1].bit_count()
            if done > deepest_done:
                deepest, deepest_done = now, done
            self._push_next(stack, now)
        candidates, _ = self._candidates(deepest[0], deepest[1])
        stuck = tuple(self._known[index] for index in candidates)
        return LinearizabilityViolation(key=self._key, done=deepest_done, total=total, state=deepest[3], stuck=stuck)

    def _push_next(self, stack: list[tuple[int, int, int, S]], now: tuple[int, int, int, S]) -> None:
        """Pushes the configurations after one more operation. The most urgent is pushed last, so it is tried first;
        guesses are tried last."""
        base, ahead, guessed, state = now
        candidates, horizon = self._candidates(base, ahead)
        following: list[tuple[int, int, int, S]] = []
        for index in candidates:
            fits, after = self._step(state, self._known[index])
            if fits:
                done = ahead | 1 << (index - base)
                closed = (~done & (done + 1)).bit_length() - 1  # the number of operations done without a gap
                step = (base + closed, done >> closed, guessed, after)
                if not self._changes[index]:
                    # A read that fits now can come first in every order that begins here: no other choice needs a try.
                    stack.append(step)
                    return
                following.append(step)
        for number, operation in enumerate(self._unknown):
            if operation.invoked > horizon:
                break
            if not guessed >> number & 1:
                fits, after = self._step(state, operation)
                if fits and after != state:
                    stack.append((base, ahead, guessed | 1 << number, after))
        stack.extend(reversed(following))

    def _candidates(self, base: int, ahead: int) -> tuple[list[int], float]:
        """Known operations that may come next: they were called before any other undone operation had returned.

        A later call also returns later than the earlier operation was called, so one pass in call order is enough.
        """
        horizon = float("inf")
        candidates: list[int] = []
        calls, returns = self._calls, self._returns
        for index in range(base, len(calls)):
            if calls[index] > horizon:
                break
            if not ahead & 1:
                candidates.append(index)
                horizon = min(horizon, returns[index])
            ahead >>= 1
        candidates.sort(key=returns.__getitem__)
        return candidates, horizon

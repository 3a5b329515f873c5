"""Work that begins at once and becomes a task's only where it has to wait.

A coroutine that is given to a task begins with the loop's next step. What it does before its first wait (a write, and
its sync handed to a thread) would be later by that.
"""

import types
from collections.abc import Coroutine, Generator
from typing import Any


class EagerCoroutine:
    """`work`, run up to its first wait, or to its end. What it raises until then is raised here."""

    __slots__ = ("_waits_for", "_work", "is_done")

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._waits_for: Any = None
        self.is_done = False
        try:
            self._waits_for = work.send(None)
        except StopIteration:
            self.is_done = True

    @types.coroutine
    def finish(self) -> Generator[Any, Any, None]:
        """Awaited once, by a task, unless it is done."""
        assert not self.is_done, "there is nothing left to wait for"
        waits_for = self._waits_for
        try:
            while True:
                try:
                    outcome = yield waits_for
                except BaseException as error:  # a cancellation, say, which is the work's to take
                    waits_for = self._work.throw(error)
                else:
                    waits_for = self._work.send(outcome)
        except StopIteration:
            self.is_done = True

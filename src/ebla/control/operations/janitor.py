"""The leader repairs an operation that nobody continues: its caller has had `janitor_delay_ms` to ask again.

A leader that the operation takes the vote from hands over as soon as it sees that. If it repaired, it would stop
leading in the middle, and the record would wait for a second delay.
"""

import asyncio
from collections.abc import Callable

from ebla.control.operations.hand_over import hand_over, successors
from ebla.control.operations.runner import OperationDeps, OperationRunner
from ebla.group0.operations import OperationFailed, UnreadableRecord, read_record

CHECK_MS = 100


class Janitor:
    def __init__(self, deps: OperationDeps, runner: OperationRunner, delay_ms: Callable[[], int]) -> None:
        self._deps = deps
        self._runner = runner
        self._delay_ms = delay_ms
        self._seen: tuple[int, int] | None = None
        """The index of the record's last change, and the term in which this node leads."""
        self._armed_ms = 0

    async def run(self) -> None:
        """Until cancelled. A failed repair arms it again."""
        while True:
            try:
                left_ms = self._check()
            except UnreadableRecord:
                left_ms = None  # `ebla status` warns of it
            if left_ms is None or left_ms > 0:
                await asyncio.sleep(min(CHECK_MS, left_ms or CHECK_MS) / 1000)
                continue
            try:
                await self.repair_now()
            except OperationFailed:
                pass  # it was reported

    def due_in_ms(self) -> int | None:
        """None: there is nothing to repair, or not by this node."""
        left_ms = self._check()
        return None if left_ms is None else max(0, left_ms)

    async def repair_now(self) -> None:
        """Raises `OperationFailed`, also if another node leads now."""
        try:
            await hand_over(self._deps)
            await self._runner.repair()
        finally:
            self._armed_ms = self._deps.clock.boot_ms()

    def _check(self) -> int | None:
        group0 = self._deps.group0
        found = read_record(group0.running.store) if group0.leads else None
        if found is None:
            self._seen = None
            return None
        now_ms = self._deps.clock.boot_ms()
        seen = (found.revision.index, group0.running.raft.core.term)
        if seen != self._seen or self._runner.current is not None:
            self._seen, self._armed_ms = seen, now_ms
            if self._runner.current is None and successors(group0):
                self._armed_ms -= self._delay_ms()  # due now; after a failure it waits for the delay
        return self._armed_ms + self._delay_ms() - now_ms

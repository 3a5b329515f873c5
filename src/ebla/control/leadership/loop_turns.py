"""Turns of control's event loop that took so long that a lease could have been renewed late."""

import asyncio
import math

BEAT_S = 0.25
SLOW_TURN_MS = 100


class LoopTurns:
    """`run` until cancelled. A beat that comes late by so much waited for a slow turn."""

    def __init__(self) -> None:
        self.slow = 0
        self.longest_ms = 0
        self.beats = 0
        """Read by the watchdog, in its own thread."""
        self._turned_s: float | None = None
        """When the loop was last seen to turn, by its own clock."""
        self._pause_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._turn()
            due_s = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.beats += 1
            late_ms = math.floor((loop.time() - due_s) * 1000)
            if late_ms > SLOW_TURN_MS:
                self.slow += 1
                self.longest_ms = max(self.longest_ms, late_ms)

    def take_longest_pause_ms(self) -> int:
        """Since the last call, the longest time in which the loop was not seen to turn: at least as long as any stall,
        and longer by one beat at most. The time up to now counts, because after a stall the caller may run before the
        beat that is late."""
        self._turn()
        taken_s, self._pause_s = self._pause_s, 0.0
        return math.ceil(taken_s * 1000)

    def _turn(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._turned_s is not None:
            self._pause_s = max(self._pause_s, now_s - self._turned_s)
        self._turned_s = now_s

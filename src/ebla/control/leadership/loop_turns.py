"""Turns of control's event loop that took so long that a lease could have been renewed late."""

import asyncio
import math

BEAT_S = 0.1
SLOW_TURN_MS = 100


class LoopTurns:
    """`run` until cancelled. A beat that comes late by so much waited for a slow turn."""

    def __init__(self) -> None:
        self.slow = 0
        self.longest_ms = 0
        self.beats = 0
        """Read by the watchdog, in its own thread."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.beats += 1
            late_ms = math.floor((loop.time() - due_s) * 1000)
            if late_ms > SLOW_TURN_MS:
                self.slow += 1
                self.longest_ms = max(self.longest_ms, late_ms)

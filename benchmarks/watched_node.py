"""A node whose loop is watched: every stall is written to a file, one JSON line each.

    python -m benchmarks.watched_node STALLS control --options FILE

A timer that should fire every few milliseconds records when it fires late. The time in which the thread was ready and
waited for a core is subtracted: on a busy machine it would otherwise dominate.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TextIO

import ebla.node.process
from ebla.node.__main__ import main as run_process
from ebla.runtime.event_loop import new_event_loop

PERIOD_MS = 5
WORTH_MS = 15


class StallWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop, out: TextIO) -> None:
        self._loop = loop
        self._out = out
        self._seen_ms = 0.0
        self._queued_ms = 0.0

    def begin(self) -> None:
        self._seen_ms, self._queued_ms = _now_ms(), _queued_ms()
        self._loop.call_later(PERIOD_MS / 1000, self._look)

    def _look(self) -> None:
        late_ms = _now_ms() - self._seen_ms - PERIOD_MS
        if late_ms > WORTH_MS:
            own_ms = late_ms - (_queued_ms() - self._queued_ms)
            self._out.write(json.dumps({"at_ms": self._seen_ms, "late_ms": late_ms, "own_ms": own_ms}) + "\n")
            self._out.flush()
        self.begin()


def _now_ms() -> float:
    return time.monotonic() * 1000


def _queued_ms() -> float:
    """How long this thread has waited for a core in total."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6


def main() -> int:
    out = Path(sys.argv[1]).open("a", encoding="utf-8")  # noqa: SIM115  # for as long as the node lives

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        loop.call_soon(StallWatch(loop, out).begin)
        return loop

    setattr(ebla.node.process, "new_event_loop", watched_loop)  # noqa: B010  # not a name that the module gives out
    return run_process(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

"""An engine that runs for as long as tests need it."""

import asyncio
from collections.abc import Callable
from types import TracebackType

import psutil
from tests.pipeline.flight_rig import LoopThread

from ebla.pipeline.java_process import descendants, is_running
from ebla.pipeline.spark_engine import SparkEngine
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import EngineState


async def until(is_so: Callable[[], bool]) -> None:
    """The caller bounds the wait."""
    while not is_so():  # noqa: ASYNC110  # what is looked at is outside of this process, or behind a port without events
        await asyncio.sleep(0.02)


class RunningEngine:
    def __init__(
        self, loop: LoopThread, options: SparkOptions, authority: bytes, state: EngineState = EngineState.READY
    ) -> None:
        """Waits on entry until the engine is in this state."""
        self._loop = loop
        self._state = state
        self.engine = loop.call(lambda: SparkEngine(options, authority))

    def __enter__(self) -> "RunningEngine":
        self._serving = self._loop.start(self.engine.serve)
        self.wait_for(self._state)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        below = descendants(self.java_pid) if self.engine.status().state is EngineState.READY else ()
        self._loop.run(self._stop())
        assert not [mark for mark in below if is_running(mark)]

    async def _stop(self) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})
        assert self._serving.cancelled()

    @property
    def java_pid(self) -> int:
        assert self.engine._live is not None
        return self.engine._live.session.process.pid

    def workers(self) -> tuple[psutil.Process, ...]:
        """The Python processes that run tasks, without the daemon that forks them."""
        below = descendants(self.java_pid)
        return tuple(mark for mark in below if not descendants(mark.pid))

    def wait_for(self, state: EngineState) -> None:
        self._loop.run(until(lambda: self.engine.status().state is state))

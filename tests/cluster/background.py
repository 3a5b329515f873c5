"""Work that runs beside a test until the test ends it."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """Runs `work` in a thread; `work` checks `stopped` and ends. Its failure fails the test."""

    def __init__(self, end_s: float) -> None:
        """`end_s`: how long it may take to end."""
        self._end_s = end_s
        self.stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def work(self) -> None: ...

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stopped.set()
        self._thread.join(self._end_s)
        assert not self._thread.is_alive(), "a client does not end"
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # raised again in the test's thread
            self._failure = error

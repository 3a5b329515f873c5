"""What goes on beside a test until the test is done with it."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """A context: `work` in a thread of its own, which looks at `stopped` and ends. Its failure is the test's."""

    def __init__(self, end_s: float) -> None:
        """`end_s`: within which it ends once it is to."""
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
        except BaseException as error:  # told in the test's own thread
            self._failure = error

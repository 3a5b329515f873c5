"""The events of a run, one readable line each, and the hash that shows whether two runs were the same."""

import hashlib
from collections import deque
from collections.abc import Callable
from struct import Struct

LINES_MAX = 400
_MARK = Struct("<dIII")


class RunTrace:
    def __init__(self, now: Callable[[], float], show: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._show = show
        self._hash = hashlib.blake2b(digest_size=8)
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.events = 0
        self.deliveries = 0
        self.syncs = 0

    def log(self, subject: str, text: str) -> None:
        line = f"{self._now():12.6f}  {subject:<10} {text}"
        self._hash.update(line.encode())
        self.events += 1
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def delivered(self, source: int, target: int, checksum: int) -> None:
        """A frame reached its target. In the hash only: there are thousands per second."""
        self.deliveries += 1
        self._hash.update(_MARK.pack(self._now(), source, target, checksum))

    def synced(self, place: int, writes: int) -> None:
        """This many writes of a file are durable. In the hash only, for processes that send no frames."""
        self.syncs += 1
        self._hash.update(_MARK.pack(self._now(), place, writes, 0))

    def digest(self) -> str:
        return self._hash.hexdigest()

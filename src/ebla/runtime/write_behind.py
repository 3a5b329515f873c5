"""What is written in bulk goes to the device while more of it comes, in place of all at once at its sync.

A sync of a gigabyte that is in the page cache alone fills the device for half a second, and each commit of a shard that
syncs meanwhile waits behind it. Nothing here makes anything durable: a sync does, and then has little left to do. The
kernel is told to begin and not asked how it ends, because whoever is told of a failed write takes it from the sync,
which must be the one to tell.
"""

import ctypes
from collections.abc import Callable

_SYNC_FILE_RANGE_WRITE = 2


def _load_begin() -> Callable[[int, int, int], None] | None:
    """Of Linux alone."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return lambda descriptor, offset, size: function(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


_begin = _load_begin()


class WriteBehind:
    """Of one file. Every so many bytes in a row are sent on their way, by the thread that wrote the last of them: a
    device that is slower than the writer holds it up."""

    def __init__(self, step_bytes: int, begin: Callable[[int, int, int], None] | None = _begin) -> None:
        assert step_bytes > 0
        self._step_bytes = step_bytes
        self._begin = begin
        self._start = self._end = 0

    def wrote(self, descriptor: int, offset: int, size: int) -> None:
        if offset != self._end:
            self._start = offset
        self._end = offset + size
        if self._end - self._start >= self._step_bytes:
            if self._begin is not None:
                self._begin(descriptor, self._start, self._end - self._start)
            self._start = self._end

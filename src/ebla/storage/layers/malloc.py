"""Settings of the C library's allocator (glibc only).

Two problems. A shard that has dropped many tables would stay as large as it ever was, since freed memory is kept: some
200 kB for each layer that was open, so `MallocTrimmer` returns it to the kernel now and then. And a process that moves
many buffers of some megabytes would get each one from the kernel, which clears every page: that is 20 % of the cost of
moving a gigabyte through a process, so `keep_freed_buffers` lets the allocator reuse them.
"""

import ctypes
from functools import cache

import pyarrow as pa

CLOSED_BETWEEN = 64
"""Looking through all freed memory takes milliseconds, so it is not done for each layer."""
BUFFER_BYTES_MAX = 32 << 20
"""The most that the C library allows."""
KEPT_BYTES_MAX = 64 << 20
"""For each arena; every thread that moves buffers may have one."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_set = getattr(ctypes.CDLL(None), "mallopt", None)


class MallocTrimmer:
    def __init__(self) -> None:
        self._closed = 0

    def is_due(self) -> bool:
        """Call it once for each layer that was closed."""
        self._closed += 1
        return self._closed % CLOSED_BETWEEN == 0

    def trim(self) -> None:
        """Blocks for some milliseconds, with the interpreter lock released."""
        if _trim is not None:
            _trim(0)


@cache
def keep_freed_buffers() -> None:
    """For this process, until it ends."""
    if _set is not None:
        _set(_MMAP_THRESHOLD, BUFFER_BYTES_MAX)
        _set(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


@cache
def use_malloc_for_arrow() -> None:
    """Arrow's buffers too, in this process, until it ends. Arrow's own allocator requests huge pages, and where memory
    is fragmented the kernel moves other pages to make one: in a process that has just started that takes longer than
    all the work on the first rows."""
    keep_freed_buffers()
    pa.set_memory_pool(pa.system_memory_pool())

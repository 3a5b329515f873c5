"""Memory of buffers of some megabytes, kept for the next ones by a process that moves many of them.

By default the C library gets each such buffer from the kernel and gives it back, and the kernel clears every page of
it: of what moving a gigabyte through a process costs, a fifth.
"""

import ctypes
from functools import cache

import pyarrow as pa

BUFFER_BYTES_MAX = 32 << 20
"""The most that the C library allows."""
KEPT_BYTES_MAX = 64 << 20
"""For each of its arenas, of which every thread that moves buffers may have one."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_set = getattr(ctypes.CDLL(None), "mallopt", None)
"""Of glibc alone."""


@cache
def keep_freed_buffers() -> None:
    """For this process, until it ends."""
    if _set is not None:
        _set(_MMAP_THRESHOLD, BUFFER_BYTES_MAX)
        _set(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


@cache
def use_malloc_for_arrow() -> None:
    """Arrow's buffers too, in this process, until it ends. Arrow's own allocator asks for huge pages, and where memory
    is in pieces the kernel moves the pages of others about to make one: in a process that has just started that is more
    than all the work on the first rows."""
    keep_freed_buffers()
    pa.set_memory_pool(pa.system_memory_pool())

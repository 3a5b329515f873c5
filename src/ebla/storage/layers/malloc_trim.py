"""Memory of layers that were closed, given back to the machine.

The C library keeps what was freed for the next who needs it. A shard whose tables were dropped would stay as large as
it ever was: some 200 kB for each layer that was open, hundreds of megabytes of a shard with many tables.
"""

import ctypes

CLOSED_BETWEEN = 64
"""Looking through all that was freed takes milliseconds, so it is not done for each layer."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc alone."""


class MallocTrimmer:
    def __init__(self) -> None:
        self._closed = 0

    def is_due(self) -> bool:
        """To be called once for each layer that was closed."""
        self._closed += 1
        return self._closed % CLOSED_BETWEEN == 0

    def trim(self) -> None:
        """Blocks for some milliseconds, without the interpreter."""
        if _trim is not None:
            _trim(0)

"""The event loop of a process: uvloop where it is installed, else asyncio's. Nothing may depend on which."""

import asyncio
from collections.abc import Callable

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # an accelerator only, and not on every platform
    from asyncio import new_event_loop

__all__ = ["new_event_loop"]

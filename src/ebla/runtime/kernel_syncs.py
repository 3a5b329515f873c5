"""Syncs that the kernel makes by itself (Linux AIO), told to the loop by a descriptor.

A thread that syncs needs the interpreter's lock before and after, and while the loop is busy it waits for both: a sync
begins when the loop next falls asleep, not when it was asked for. The kernel's own workers need no lock, and the whole
of it costs a quarter of the processor time.
"""

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple, Self

Ended = Callable[[BaseException | None], None]

SLOTS = 64
"""Syncs under way at once; further ones are for threads."""
_SYNC_CONTENT = 3  # IOCB_CMD_FDSYNC
_TELL_BY_DESCRIPTOR = 1  # IOCB_FLAG_RESFD
# data, key, flags of the call, kind, priority, file, buffer, length, offset, spare, flags, descriptor to tell
_ORDER = struct.Struct("=QIiHhIQQqQII")
_EVENT = struct.Struct("=QQqq")


class _Calls(NamedTuple):
    setup: int
    destroy: int
    get_events: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


class KernelSyncs:
    """`open`, then `submit` from the loop that is to be told; `close` waits for all of them."""

    def __init__(self, calls: _Calls, context: ctypes.c_ulong) -> None:
        self._calls = calls
        self._context = context
        self._told_by = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._order = ctypes.create_string_buffer(_ORDER.size)
        self._orders = (ctypes.c_void_p * 1)(ctypes.addressof(self._order))
        self._events = ctypes.create_string_buffer(_EVENT.size * SLOTS)
        self._waiting: dict[int, Ended] = {}
        self._count = 0

    @classmethod
    def open(cls) -> Self | None:
        """None where the kernel, or what this process may ask of it, has no such thing."""
        calls = _CALLS.get(platform.machine())
        if calls is None or not sys.platform.startswith("linux"):
            return None
        context = ctypes.c_ulong(0)
        if _call(calls.setup, SLOTS, ctypes.byref(context)) < 0:
            return None
        return cls(calls, context)

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    def submit(self, descriptor: int, ended: Ended) -> bool:
        """`ended` is called on the running loop, or by `close`. False: not taken, and nothing happened."""
        if len(self._waiting) >= SLOTS or not self._listens():
            return False
        self._count += 1
        _ORDER.pack_into(
            self._order, 0, self._count, 0, 0, _SYNC_CONTENT, 0, descriptor, 0, 0, 0, 0, _TELL_BY_DESCRIPTOR,
            self._told_by,
        )  # fmt: skip
        if _call(self._calls.submit, self._context, 1, self._orders) != 1:
            return False  # whatever is wrong with it, a thread's own call will tell
        self._waiting[self._count] = ended
        return True

    def close(self) -> None:
        while self._waiting:
            self._collect(at_least=1)
        self._stop_listening()
        _call(self._calls.destroy, self._context)
        os.close(self._told_by)

    def _listens(self) -> bool:
        """On the running loop. Not while another one is still to be told."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._waiting:
                return False
            self._stop_listening()
            loop.add_reader(self._told_by, self._told)
            self._loop = loop
        return True

    def _stop_listening(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._told_by)
        self._loop = None

    def _told(self) -> None:
        try:
            os.eventfd_read(self._told_by)
        except BlockingIOError:
            return  # collected already
        self._collect(at_least=0)

    def _collect(self, *, at_least: int) -> None:
        wait = _call_and_let_others_run if at_least else _call
        count = wait(self._calls.get_events, self._context, at_least, SLOTS, self._events, None)
        for place in range(max(count, 0)):
            number, _, result, _ = _EVENT.unpack_from(self._events, place * _EVENT.size)
            failure = OSError(-result, os.strerror(-result)) if result < 0 else None
            self._waiting.pop(number)(failure)


def _loaded(library: type[ctypes.CDLL]) -> Callable[..., int]:
    function = library(None, use_errno=True).syscall
    function.restype = ctypes.c_long

    def call(*arguments: object) -> int:
        while True:
            result = int(function(*arguments))
            if result >= 0 or ctypes.get_errno() != errno.EINTR:
                return result

    return call


_call = _loaded(ctypes.PyDLL)
"""Keeps the interpreter's lock: none of these waits."""
_call_and_let_others_run = _loaded(ctypes.CDLL)

"""Syncs that the kernel carries out by itself and tells the loop about (Linux's asynchronous I/O).

A thread of ours has to be woken, take the interpreter's lock, sync, take the lock again and wake the loop. Under load
that costs more processor time than the sync, and the lock may be a while in coming. Here one call asks for the sync and
an event tells that it is done. Where the system does not offer it, `open_kernel_syncs` gives None.
"""

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

Ended = Callable[[BaseException | None], None]

UNDER_WAY_MAX = 64
_SYNC_CONTENT = 3
_TELL_BY_EVENT = 1


@dataclass(frozen=True, slots=True)
class _Calls:
    """The numbers of the system calls."""

    setup: int
    destroy: int
    get_events: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


class _Order(ctypes.Structure):
    """`struct iocb` of a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Waiting:
    __slots__ = ("done", "ended", "order")

    def __init__(self, done: "asyncio.Future[None]", ended: Ended, order: _Order) -> None:
        self.done = done
        self.ended = ended
        self.order = order
        """Kept until the kernel has answered."""


class KernelSyncs:
    """Of one loop. `close` waits for what is under way."""

    def __init__(self, calls: _Calls, context: ctypes.c_ulong, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls = calls
        self._context = context
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events = (_Event * UNDER_WAY_MAX)()
        self._waiting: dict[int, _Waiting] = {}
        self._serial = 0
        loop.add_reader(self._event, self._reap)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < UNDER_WAY_MAX

    async def sync(self, descriptor: int, ended: Ended) -> None:
        """`ended` is called once the kernel is done, also if nobody waits any more."""
        assert self.has_room, "the caller looks first"
        self._serial += 1
        order = _Order(
            data=self._serial,
            opcode=_SYNC_CONTENT,
            descriptor=descriptor,
            flags=_TELL_BY_EVENT,
            event_descriptor=self._event,
        )
        orders = (ctypes.POINTER(_Order) * 1)(ctypes.pointer(order))
        if _system_call(self._calls.submit, self._context, 1, orders) != 1:
            failure = _last_error()
            ended(failure)
            raise failure
        waiting = self._waiting[self._serial] = _Waiting(self.loop.create_future(), ended, order)
        await waiting.done

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self._event)
        while self._waiting:
            self._take(least=1)
        os.close(self._event)
        _system_call(self._calls.destroy, self._context)

    def _reap(self) -> None:
        try:
            os.read(self._event, 8)
        except BlockingIOError:
            return
        self._take(least=0)

    def _take(self, least: int) -> None:
        count = _system_call(
            self._calls.get_events,
            self._context,
            ctypes.c_long(least),
            ctypes.c_long(UNDER_WAY_MAX),
            self._events,
            None,
        )
        for event in self._events[: max(count, 0)]:
            waiting = self._waiting.pop(event.data)
            failure = None if event.result == 0 else OSError(-event.result, os.strerror(-event.result))
            waiting.ended(failure)
            if waiting.done.done() or self.loop.is_closed():
                continue
            if failure is None:
                waiting.done.set_result(None)
            else:
                waiting.done.set_exception(failure)


def open_kernel_syncs(loop: asyncio.AbstractEventLoop) -> KernelSyncs | None:
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" and sys.byteorder == "little" else None
    if calls is None or not hasattr(os, "eventfd"):
        return None
    context = ctypes.c_ulong(0)
    if _system_call(calls.setup, UNDER_WAY_MAX, ctypes.byref(context)) != 0:
        return None
    return KernelSyncs(calls, context, loop)


def _system_call(number: int, *arguments: object) -> int:
    while (answer := int(_library.syscall(ctypes.c_long(number), *arguments))) == -1:
        if ctypes.get_errno() != errno.EINTR:
            break
    return answer


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


_library = ctypes.CDLL(None, use_errno=True)

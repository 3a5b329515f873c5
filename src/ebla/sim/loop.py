"""An asyncio event loop in virtual time: the same seed gives the same run, and an hour takes seconds.

Shells run on it unchanged. When nothing is ready, time jumps to the next timer. Callbacks that are ready together run
in an order drawn from the seed: asyncio promises first in, first out, but code that relies on it is one refactoring
away from a race, so the loop shuffles.

It is written against `AbstractEventLoop` and not `BaseEventLoop`, so that it needs almost no private names of asyncio.
`PRIVATE_NAMES` lists those it needs, and a test pins them per Python version.
"""

import asyncio
import contextvars
import gc
import heapq
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from ebla.sim.incarnation import CURRENT_INCARNATION, IncarnationEnded, ProcessIncarnation
from ebla.sim.rng import SimRng

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Coro = Coroutine[Any, Any, T] | Generator[Any, None, T]
ExceptionContext = dict[str, Any]

STEPS_AT_ONE_TIME_MAX = 500_000
CLOSE_TRIES_MAX = 100
COLLECT_EVERY_STEPS = 300_000
WORK_MS_LOW, WORK_MS_HIGH = 0.05, 3.0

PRIVATE_NAMES = ("asyncio._set_running_loop", "asyncio.Task._log_destroy_pending")


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set: nothing will ever happen again."""


class Livelock(AssertionError):
    """Callbacks run without end and time does not move."""


class Overrun(AssertionError):
    """The run went past its limit of virtual time."""


class NotSimulated(RuntimeError):
    """Simulated code used something that must come through a port."""


class SimHandle(asyncio.TimerHandle):
    """One scheduled callback. Shares only the type with asyncio's own, none of its fields."""

    __slots__ = ("args", "callback", "context", "dropped", "due", "incarnation")

    def __init__(  # asyncio's parent initialiser would copy contexts and read debug flags once per callback
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, due: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.due = due
        self.incarnation: ProcessIncarnation | None = context.get(CURRENT_INCARNATION)
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.due

    def __repr__(self) -> str:
        return f"<handle {getattr(self.callback, '__qualname__', self.callback)!r} due {self.due:.6f}>"

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class SimTask(asyncio.Task[T]):
    """A task whose hash is its number.

    `TaskGroup` and `asyncio.wait` keep tasks in sets and walk them when they cancel or return. The usual hash is the
    memory address, so that order would differ between two processes with the same seed.
    """

    def __init__(self, coro: Coro[T], loop: "SimLoop", name: str | None, context: contextvars.Context) -> None:
        self.number = loop.next_number()
        self.incarnation: ProcessIncarnation | None = context.get(CURRENT_INCARNATION)
        self.own_context = context
        super().__init__(coro, loop=loop, name=name or f"task-{self.number}", context=context)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[T]):
    """A future whose hash is its number, for the same reason."""

    def __init__(self, loop: "SimLoop") -> None:
        self.number = loop.next_number()
        self.incarnation: ProcessIncarnation | None = CURRENT_INCARNATION.get(None)
        """If it has ended, no caller is left to handle the exception."""
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, rng: SimRng) -> None:
        self._order = rng.fork("order")
        self._work = rng.fork("work")
        self._now = 0.0
        self._ready: list[SimHandle] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._number = 0
        self._thread = threading.get_ident()
        self._running = False
        self._stopping = False
        self._closed = False
        self._ended: list[ProcessIncarnation] = []
        self._generators: dict[int, ProcessIncarnation | None] = {}
        self._steps_at_now = 0
        self._idle_waiters: list[SimFuture[None]] = []
        self.steps = 0
        self.time_max = float("inf")
        self._collect_at = COLLECT_EVERY_STEPS
        self.on_problem: Callable[[ExceptionContext], None] = self.default_exception_handler

    # -- time and callbacks ------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimHandle:
        self._check_thread()
        handle = SimHandle(callback, args, contextvars.copy_context() if context is None else context, self._now)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        self._check_thread()
        handle = SimHandle(callback, args, contextvars.copy_context() if context is None else context, when)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def create_future(self) -> SimFuture[Any]:
        return SimFuture(self)

    def create_task(
        self, coro: Coro[T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> SimTask[T]:
        self._check_thread()
        context = contextvars.copy_context() if context is None else context
        incarnation = context.get(CURRENT_INCARNATION)
        if incarnation is not None and not incarnation.alive:
            coro.close()
            raise IncarnationEnded(incarnation.name)
        task = SimTask(coro, self, name, context)
        if incarnation is not None:
            incarnation.adopt(task)
        return task

    def run_in_executor(
        self,
        executor: Any,  # noqa: ARG002  # there are no threads
        func: Callable[[Unpack[Ts]], T],
        *args: *Ts,
    ) -> SimFuture[T]:
        """A worker thread becomes a delay: the work runs in one piece, some milliseconds later."""
        done: SimFuture[T] = self.create_future()
        self.call_later(self._work.between(WORK_MS_LOW, WORK_MS_HIGH) / 1000.0, _finish_work, done, func, args)
        return done

    # -- running -----------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        assert not self._running, "this loop is already running"
        assert not self._closed, "this loop is closed"
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not task.done():
            raise Deadlock("the loop was stopped before its main task ended")
        return task.result()

    def run_forever(self) -> None:
        self._check_thread()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._note_generator, finalizer=self._finalize_generator)
        asyncio._set_running_loop(self)  # noqa: SLF001  # PRIVATE_NAMES
        self._running = True
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._stopping = False
            self._running = False
            asyncio._set_running_loop(None)  # noqa: SLF001  # PRIVATE_NAMES
            sys.set_asyncgen_hooks(*hooks)

    def _turn(self) -> None:
        if not self._ready and not self._wake_idle_waiters():
            self._move_time()
        batch, self._ready = self._ready, []
        if len(batch) > 1:
            self._order.shuffle(batch)
        for handle in batch:
            if not handle.dropped:
                self._run(handle)
        self.steps += len(batch)
        self._steps_at_now += len(batch)
        if self._steps_at_now > STEPS_AT_ONE_TIME_MAX:
            raise Livelock(f"{self._steps_at_now} callbacks ran at {self._now:.6f} s and time did not move")
        if self.steps >= self._collect_at:
            # When the collector runs by itself depends on all allocations of the process; a count of steps does not.
            self._collect_at = self.steps + COLLECT_EVERY_STEPS
            gc.collect()

    async def wait_idle(self) -> None:
        """Waits until nothing is left to do at this instant: the rest waits for time to pass, or for the caller."""
        waiter: SimFuture[None] = self.create_future()
        self._idle_waiters.append(waiter)
        await waiter

    def _wake_idle_waiters(self) -> bool:
        timers = self._timers
        while timers and timers[0][2].dropped:
            heapq.heappop(timers)
        if timers and timers[0][0] <= self._now:
            return False
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(self._ready)

    def _move_time(self) -> None:
        timers = self._timers
        while timers and timers[0][2].dropped:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing is ready and no timer is set at {self._now:.6f} s")
        due = timers[0][0]
        if due > self._now:
            self._now = due
            self._steps_at_now = 0
            if due > self.time_max:
                raise Overrun(f"the run did not end within {self.time_max:.0f} simulated seconds")
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def _run(self, handle: SimHandle) -> None:
        incarnation = handle.incarnation
        if incarnation is not None:
            if not incarnation.alive:
                return
            if incarnation.paused:
                incarnation.deferred.append(handle)
                return
        try:
            handle.context.run(handle.callback, *handle.args)
        except IncarnationEnded:
            pass
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler(
                {"message": f"exception in {handle!r}", "exception": error, "incarnation": incarnation}
            )
        if self._ended:
            self._close_ended()

    # -- incarnations -------------------------------------------------------------------------------------------------

    def pause(self, incarnation: ProcessIncarnation) -> None:
        incarnation.paused = True

    def resume(self, incarnation: ProcessIncarnation) -> None:
        incarnation.paused = False
        for handle in incarnation.deferred:
            assert isinstance(handle, SimHandle)
            self._ready.append(handle)
        incarnation.deferred = []

    def end(self, incarnation: ProcessIncarnation) -> None:
        """Ends an incarnation now. Its coroutines are closed after the current callback, which may be one of them."""
        if incarnation.alive:
            incarnation.alive = False
            self._ended.append(incarnation)
            if not self._running:
                self._close_ended()

    def _close_ended(self) -> None:
        """Closes the suspended coroutines of ended incarnations in a fixed order, before the collector would do it."""
        ended, self._ended = self._ended, []
        for incarnation in ended:
            tasks, incarnation.tasks, incarnation.deferred = incarnation.tasks, [], []
            for task in reversed(tasks):
                assert isinstance(task, SimTask)
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # PRIVATE_NAMES
                if not task.done():
                    _close(task)

    def _note_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        # By address: a new object at the same address is recorded again. A weak reference would not do, because the
        # finalizer runs after weak references are cleared.
        self._generators[id(generator)] = CURRENT_INCARNATION.get(None)

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        incarnation = self._generators.pop(id(generator), None)
        if self._running and (incarnation is None or incarnation.alive):
            self.create_task(generator.aclose(), context=None if incarnation is None else incarnation.new_context())

    # -- the rest of the interface -------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        assert not self._running, "a running loop cannot be closed"
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators are closed when they are dropped."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is no executor."""

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """asyncio's debug mode reads the real clock: it stays off."""

    def call_exception_handler(self, context: ExceptionContext) -> None:
        incarnation = _incarnation_of(context)
        if incarnation is None or incarnation.alive:
            self.on_problem(context)

    def default_exception_handler(self, context: ExceptionContext) -> None:
        error = context.get("exception")
        raise AssertionError(context["message"]) from error

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Part of the loop's contract with asyncio's own timer handles; ours do not need it."""

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise NotSimulated("another thread called into the simulated loop; run its work with `Disk.run`")


def _finish_work(done: "SimFuture[T]", func: Callable[..., T], args: tuple[Any, ...]) -> None:
    # A started worker thread runs to its end even if its caller no longer waits.
    try:
        result = func(*args)
    except Exception as error:
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)


def _close(task: "SimTask[Any]") -> None:
    """Throws GeneratorExit until the coroutine ends: one that awaits in a `finally` needs several."""
    coro = task.get_coro()
    assert coro is not None
    for _ in range(CLOSE_TRIES_MAX):
        try:
            task.own_context.run(coro.close)
        except BaseException:  # noqa: S112  # an ended incarnation: its errors do not matter
            continue
        return


def _incarnation_of(context: ExceptionContext) -> ProcessIncarnation | None:
    subject = context.get("task") or context.get("future")
    incarnation = context.get("incarnation") or getattr(subject, "incarnation", None)
    assert incarnation is None or isinstance(incarnation, ProcessIncarnation)
    return incarnation


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refused(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotSimulated(f"{name} is not simulated: real sockets, processes and signals come in through ports only")

    refused.__name__ = name
    return refused


REFUSED_NAMES = (
    "add_reader", "add_signal_handler", "add_writer", "connect_accepted_socket", "connect_read_pipe",
    "connect_write_pipe", "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection",
    "create_unix_server", "getaddrinfo", "get_exception_handler",
    "get_task_factory", "getnameinfo", "remove_reader", "remove_signal_handler", "remove_writer",
    "sendfile", "set_default_executor", "set_exception_handler", "set_task_factory", "sock_accept", "sock_connect",
    "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendfile",
    "sock_sendto", "start_tls", "subprocess_exec", "subprocess_shell",
)  # fmt: skip
for _name in REFUSED_NAMES:
    setattr(SimLoop, _name, _refusal(_name))


def simulated_loop(rng: SimRng) -> SimLoop:
    return SimLoop(rng)  # type: ignore[abstract]  # the lines above refuse the rest of the interface

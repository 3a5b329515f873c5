"""Connections to other nodes: one per host and lane, opened on first use, kept, and reopened after they end.

After a failure the next attempt waits with exponential back-off and jitter, so that nodes that lost the same peer do
not all come back at once. A call in the meantime waits for that attempt if its deadline allows. Otherwise it raises
`Unreachable`: nothing was sent.
"""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass

from ebla.aio.eager import needs_task
from ebla.model.errors import EblaError, HostLeft, Unreachable
from ebla.model.identity import Address, HostId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.rng import Rng
from ebla.ports.transport import Transport
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane, WelcomeFrame
from ebla.wire.limits import DEFAULT_WIRE_LIMITS, WireLimits
from ebla.wire.verbs import A, Notice, Q, Verb


class RouteState(enum.StrEnum):
    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    """For the next attempt."""
    ENDED = "ended"


class _Route:
    """The connection to one host on one lane. `changed` is replaced at each change of state; a waiter misses none."""

    def __init__(self, host: HostId, lane: Lane, address: Address) -> None:
        self.host = host
        self.lane = lane
        self.address = address
        self.state = RouteState.CONNECTING
        self.caller: RpcClientConnection | None = None
        self.error = ""
        self.failures = 0
        self.is_refused = False
        self.next_attempt_at = 0.0
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def move(self, state: RouteState) -> None:
        self.state = state
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersContext:
    transport: Transport
    rng: Rng
    introduction: Introduction
    report: EventReporter
    limits: WireLimits = DEFAULT_WIRE_LIMITS


class Peers:
    """Its connections run in the task group and end with it."""

    def __init__(self, tasks: asyncio.TaskGroup, context: PeersContext) -> None:
        self._tasks = tasks
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[HostId, Address] = {}
        self._routes: dict[tuple[int, Lane], _Route] = {}
        """By the host's integer: hashing and comparing its id would run Python code for every message."""
        self.on_refused: Callable[[HostId, bool], None] = _ignore_refusal
        """Called when an attempt to connect to a host fails, and again when there is a connection or no route any more.
        A connection that ends does not count as refused: the next attempt decides."""
        self.on_left: Callable[[], None] = _ignore_leave
        """Called when a host refuses a connection because this host has left the cluster."""

    # ---- addresses

    def set_address(self, host: HostId, address: Address) -> None:
        """Where the host listens. A change closes connections to the old address."""
        if self._addresses.get(host) == address:
            return
        self._addresses[host] = address
        self._drop_routes(host, f"host {host} moved to {address}")

    def keep(self, host: HostId, lane: Lane) -> None:
        """Connects before the first message: a notice without a connection would be lost."""
        self._route(host, lane)

    def forget(self, host: HostId) -> None:
        self._addresses.pop(host, None)
        self._drop_routes(host, f"host {host} is no longer a peer")

    def close(self, cause: str) -> None:
        for host in list(self._addresses):
            self._drop_routes(host, cause)

    def hosts(self) -> tuple[HostId, ...]:
        return tuple(self._addresses)

    def is_connected(self, host: HostId, lane: Lane) -> bool:
        route = self._routes.get((host.int, lane))
        return route is not None and route.caller is not None

    # ---- messages

    async def call(
        self,
        host: HostId,
        verb: Verb[Q, A],
        request: Q,
        deadline_ms: int,
        before_send: Callable[[], None] | None = None,
    ) -> A:
        """As `RpcClientConnection.call`, over the connection of the verb's lane. `before_send` is called in the turn of
        the loop in which the request is sent, and may refuse that by raising."""
        route = self._route(host, verb.lane)
        caller = route.caller
        if caller is None:
            began = self._loop.time()
            caller = await self._wait_connected(route, began + deadline_ms / 1000)
            deadline_ms -= int((self._loop.time() - began) * 1000)
        return await caller.call(verb, request, deadline_ms, before_send)

    async def wait_connected(self, host: HostId, lane: Lane, deadline_ms: int) -> None:
        """For a call that must leave in the turn in which it is made. Raises `Unreachable`."""
        route = self._route(host, lane)
        if route.caller is None:
            await self._wait_connected(route, self._loop.time() + deadline_ms / 1000)

    def send(self, host: HostId, notice: Notice[Q], message: Q) -> bool:
        """Sends a notice. False: it was dropped, because there is no connection or its queue is full."""
        caller = self._route(host, notice.lane).caller
        return caller is not None and caller.send(notice, message)

    # ---- connections

    def _route(self, host: HostId, lane: Lane) -> _Route:
        route = self._routes.get((host.int, lane))
        if route is None:
            address = self._addresses.get(host)
            if address is None:
                raise Unreachable(f"no address is known for host {host}")
            route = _Route(host, lane, address)
            keeping = self._keep(route)
            try:
                route.task = self._tasks.create_task(keeping)
            except RuntimeError:  # the group of tasks is ending, and takes no more
                keeping.close()
                raise Unreachable("this process is about to stop") from None
            self._routes[(host.int, lane)] = route
        return route

    def _drop_routes(self, host: HostId, cause: str) -> None:
        for lane in Lane:
            route = self._routes.pop((host.int, lane), None)
            if route is None:
                continue
            route.error = cause
            self._note_refused(route, False)
            caller, route.caller = route.caller, None
            route.move(RouteState.ENDED)
            if caller is not None:
                caller.close(cause)
            if route.task is not None:
                route.task.cancel(cause)

    async def _wait_connected(self, route: _Route, expires_at: float) -> RpcClientConnection:
        seen_failures = route.failures
        await needs_task()
        try:
            async with asyncio.timeout_at(expires_at):
                while route.caller is None:
                    hopeless = route.state is RouteState.WAITING and route.next_attempt_at >= expires_at
                    if hopeless or route.failures > seen_failures or route.state is RouteState.ENDED:
                        raise _unreachable(route)
                    await route.changed.wait()
        except TimeoutError:
            raise _unreachable(route) from None
        return route.caller

    async def _keep(self, route: _Route) -> None:
        limits = self._context.limits
        while True:
            route.move(RouteState.CONNECTING)
            try:
                caller, _ = await connect(self._context, route.address, ConnectionTarget(route.lane, route.host))
            except EblaError as error:
                if isinstance(error, HostLeft):
                    self.on_left()
                self._failed(route, error.message)
                self._note_refused(route, True)
            else:
                ready_at = self._loop.time()
                await self._use(route, caller)
                if self._loop.time() - ready_at >= limits.backoff_max_ms / 1000:
                    route.failures = 0
            wait_ms = backoff_ms(route.failures, limits, self._context.rng)
            route.next_attempt_at = self._loop.time() + wait_ms / 1000
            route.move(RouteState.WAITING)
            await asyncio.sleep(wait_ms / 1000)

    async def _use(self, route: _Route, caller: RpcClientConnection) -> None:
        """Holds the connection until it ends. The count of failures is reset only if it lasted a while: a peer that
        accepts and closes at once must meet a growing back-off too."""
        route.caller, route.error = caller, ""
        self._note_refused(route, False)
        route.move(RouteState.READY)
        details = {"host": str(route.host), "lane": route.lane.name, "address": str(route.address)}
        self._context.report("wire.peer_connected", details)
        try:
            cause = await caller.wait_closed()
        finally:
            route.caller = None
            caller.close("no longer needed")
        self._failed(route, cause)

    def _note_refused(self, route: _Route, is_refused: bool) -> None:
        if is_refused is not route.is_refused:
            route.is_refused = is_refused
            self.on_refused(route.host, is_refused)

    def _failed(self, route: _Route, cause: str) -> None:
        route.failures += 1
        changed = cause != route.error
        route.error = cause
        if changed:  # report the same failure once, not once a second
            details = {"host": str(route.host), "lane": route.lane.name, "address": str(route.address), "cause": cause}
            self._context.report("wire.peer_unreachable", details)


def _ignore_refusal(_host: HostId, _is_refused: bool) -> None:
    pass


def _ignore_leave() -> None:
    pass


def _unreachable(route: _Route) -> Unreachable:
    return Unreachable(f"host {route.host} at {route.address}: {route.error or 'no connection in time'}")


def backoff_ms(failures: int, limits: WireLimits, rng: Rng) -> int:
    """Between half and all of a step that doubles with each failure, up to the bound."""
    step = min(limits.backoff_max_ms, limits.backoff_first_ms * 2 ** min(max(0, failures - 1), 20))
    return rng.randrange(step // 2, step + 1)


async def connect(
    context: PeersContext, address: Address, target: ConnectionTarget
) -> tuple[RpcClientConnection, WelcomeFrame]:
    """One connection, greeted and ready; raises `Unreachable` after `connect_ms`. The caller closes it."""
    caller = RpcClientConnection(context.introduction, target, context.limits)
    try:
        async with asyncio.timeout(context.limits.connect_ms / 1000):
            await context.transport.connect(address, caller.open)
            return caller, await caller.wait_ready()
    except TimeoutError:
        caller.close("not ready in time")
        raise Unreachable(f"{address}: not connected and greeted within {context.limits.connect_ms} ms") from None
    except BaseException:
        caller.close("given up")
        raise

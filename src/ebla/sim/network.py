"""The simulated network: links between processes, over directed paths that delay, lose, repeat, reorder, clog and
break.

A path connects two units in one direction, by name, and outlives crashes. A link is one connection with two ends. The
work of the kernel (queues, arrivals, resets) runs outside every incarnation: it goes on while a unit is paused.
"""

import asyncio
import contextvars
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ebla.model.errors import InvalidRequest, Unreachable
from ebla.model.identity import Address, HostId
from ebla.ports.transport import LinkEvents, OpenLink
from ebla.sim.incarnation import ProcessIncarnation
from ebla.sim.loop import SimFuture, SimLoop
from ebla.sim.rng import SimRng
from ebla.sim.trace import RunTrace

LOW_WATER_BYTES = 64 * 1024
CONNECT_RETRY_S = (0.0, 1.0, 2.0)
"""How a real kernel repeats its SYN packet. After the last one it gives up."""
SERIAL_S = 1e-7
"""Two frames of one link never arrive at the same instant, or the loop would choose their order."""
EPHEMERAL_PORT = 40_000


@dataclass(slots=True, kw_only=True)
class NetworkConditions:
    """The behaviour of every path without faults. Times in ms."""

    latency_ms: float = 0.4
    jitter_ms: float = 0.6
    tail: float = 0.01
    tail_ms: float = 25.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_ms: float = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class PathFault:
    """What one fault adds to a path while it lasts."""

    extra_latency_ms: float = 0.0
    extra_loss: float = 0.0
    bytes_per_s: float | None = None


@dataclass(slots=True, kw_only=True)
class NetworkPath:
    """One direction between two units. `cuts` and `clogs` are counters: two faults may hit the same path."""

    cuts: int = 0
    clogs: int = 0
    extra_latency_ms: float = 0.0
    extra_loss: float = 0.0
    bytes_per_s: float | None = None
    waiting: list["SimLink"] = field(default_factory=list)
    faults: list[PathFault] = field(default_factory=list)

    @contextmanager
    def inject(self, strain: PathFault) -> Iterator[None]:
        """Several faults at once add up. Each ends independently."""
        self.faults.append(strain)
        self._add_up()
        try:
            yield
        finally:
            self.faults = [held for held in self.faults if held is not strain]
            self._add_up()

    def clear_faults(self) -> None:
        self.faults = []
        self._add_up()

    def _add_up(self) -> None:
        """Sums again each time: adding to a float and subtracting again does not return exactly to zero."""
        self.extra_latency_ms = sum((strain.extra_latency_ms for strain in self.faults), 0.0)
        self.extra_loss = sum((strain.extra_loss for strain in self.faults), 0.0)
        paces = [strain.bytes_per_s for strain in self.faults if strain.bytes_per_s is not None]
        self.bytes_per_s = min(paces, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEndpoint:
    """One end of a connection: the unit's name and number, its machine's address, and its certificate's host id."""

    name: str
    number: int
    host: str
    host_id: HostId | None


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The last thing a link delivers."""

    cause: str


@dataclass(slots=True, kw_only=True)
class _Listener:
    endpoint: NetworkEndpoint
    incarnation: ProcessIncarnation
    address: Address
    on_open: OpenLink


class SimLink:
    """One end of a connection: `ports.transport.Link`."""

    def __init__(
        self, network: "Network", incarnation: ProcessIncarnation, here: NetworkEndpoint, peer_address: Address
    ) -> None:
        self._network = network
        self.incarnation = incarnation
        self.here = here
        self.other: SimLink = self  # replaced as soon as both ends exist
        self.peer_address = peer_address
        self.number = network.loop.next_number()
        self.open = True
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.flush_due = False
        self.last_arrival = 0.0
        self._events: LinkEvents | None = None
        self._inbox: deque[bytes | LinkEnd] = deque()
        self._pump_due = False
        self._drain_waiters: list[SimFuture[None]] = []

    @property
    def peer_host(self) -> HostId | None:
        return self.other.here.host_id

    def send(self, frame: bytes) -> None:
        self.incarnation.check()
        if not self.open:
            return
        self.queue.append(bytes(frame))
        self.queued_bytes += len(frame)
        if not self.flush_due:
            self.flush_due = True
            self._network.flush_soon(self)

    def send_now(self, frame: bytes) -> None:
        """A loop turn takes no simulated time, so the end of the turn is soon enough."""
        self.send(frame)

    async def wait_drained(self) -> None:
        self.incarnation.check()
        while self.open and self.queued_bytes > LOW_WATER_BYTES:
            drained: SimFuture[None] = self._network.loop.create_future()
            self._drain_waiters.append(drained)
            await drained

    def close(self, cause: str) -> None:
        self.incarnation.check()
        if self.open:
            self._network.flush(self)
            self.break_off(cause)
            self._network.send_end(self, f"closed by {self.here.name}: {cause}")

    # -- called by the network -----------------------------------------------------------------------------------

    def attach(self, events: LinkEvents) -> None:
        """From now on the owner receives frames, beginning with those that arrived while `on_open` ran."""
        self._events = events
        self._pump()

    def arrive(self, item: bytes | LinkEnd) -> None:
        """The kernel has the item. The owner receives it in a later turn, in order of arrival, and not while paused."""
        self._inbox.append(item)
        if not self._pump_due:
            self._pump_due = True
            self._network.loop.call_soon(self._pump, context=self.incarnation.context)

    def _pump(self) -> None:
        self._pump_due = False
        while self._inbox and self._events is not None:
            match self._inbox.popleft():
                case LinkEnd(cause):
                    self.shut()
                    self._inbox.clear()
                    self._events.link_closed(cause)
                case bytes() as frame:
                    self._events.frame_received(frame)

    def shut(self) -> None:
        """Nothing more is sent from here."""
        self.open = False
        self.queue.clear()
        self.queued_bytes = 0
        self._network.forget(self)
        self.wake_drained()

    def break_off(self, cause: str) -> None:
        """Closes this end at once: frames that arrived and were not delivered are lost. The owner learns only of the
        end."""
        if self.open and self.incarnation.alive:
            self.shut()
            self._inbox.clear()
            self.arrive(LinkEnd(cause))

    def wake_drained(self) -> None:
        if self.queued_bytes <= LOW_WATER_BYTES or not self.open:
            waiters, self._drain_waiters = self._drain_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class SimListening:
    """`ports.transport.Listener`."""

    def __init__(self, network: "Network", incarnation: ProcessIncarnation, key: tuple[str, Address]) -> None:
        self._network = network
        self._incarnation = incarnation
        self._key = key

    @property
    def address(self) -> Address:
        return self._key[1]

    async def close(self) -> None:
        self._incarnation.check()
        self._network.stop_listening(self._key, self._incarnation)


class SimTransport:
    """`ports.transport.Transport` of one incarnation."""

    def __init__(self, network: "Network", incarnation: ProcessIncarnation, here: NetworkEndpoint) -> None:
        self._network = network
        self._incarnation = incarnation
        self._here = here
        self._port = EPHEMERAL_PORT

    async def connect(self, address: Address, on_open: OpenLink) -> SimLink:
        self._incarnation.check()
        for pause_s in CONNECT_RETRY_S:
            await asyncio.sleep(pause_s)
            self._incarnation.check()
            listener = await self._network.reach(self._here, address)
            if listener is not None:
                self._port += 1
                link = self._network.open_link(self._incarnation, self._here, self._port, listener)
                link.attach(on_open(link))
                return link
        raise Unreachable(f"{address} did not answer {self._here.name}")

    async def listen(self, address: Address, on_open: OpenLink) -> SimListening:
        self._incarnation.check()
        if not address.is_local_socket and address.host != self._here.host:
            raise InvalidRequest(f"{address} is not an address of {self._here.name}, which is at {self._here.host}")
        key = self._network.key(self._here, address)
        self._network.start_listening(
            key, _Listener(endpoint=self._here, incarnation=self._incarnation, address=address, on_open=on_open)
        )
        return SimListening(self._network, self._incarnation, key)


class Network:
    """Every path, listener and link of a world. Faults act on this."""

    def __init__(self, loop: SimLoop, rng: SimRng, narrative: RunTrace) -> None:
        self.loop = loop
        self.conditions = NetworkConditions()
        self._rng = rng
        self._narrative = narrative
        self._kernel = contextvars.Context()
        self._paths: dict[tuple[str, str], NetworkPath] = {}
        self._listeners: dict[tuple[str, Address], _Listener] = {}
        self._links: dict[int, SimLink] = {}
        self._up: dict[str, bool] = {}

    # -- faults --------------------------------------------------------------------------------------------------

    def path(self, source: str, target: str) -> NetworkPath:
        key = (source, target)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = NetworkPath()
        return found

    def cut(self, source: str, target: str) -> None:
        """From now on frames in this direction are lost silently: the links do not notice."""
        self.path(source, target).cuts += 1

    def uncut(self, source: str, target: str) -> None:
        path = self.path(source, target)
        path.cuts = max(0, path.cuts - 1)

    def clog(self, source: str, target: str) -> None:
        """Frames queue at the sender and leave when the path is free again. Nothing is lost."""
        self.path(source, target).clogs += 1

    def unclog(self, source: str, target: str) -> None:
        path = self.path(source, target)
        path.clogs = max(0, path.clogs - 1)
        if not path.clogs:
            waiting, path.waiting = path.waiting, []
            for link in waiting:
                self.flush(link)

    def reset(self, one: str, other: str) -> int:
        """Breaks every link between two units, at both ends at once. Frames on the way are lost."""
        broken = [link for link in self._links.values() if (link.here.name, link.other.here.name) == (one, other)]
        for link in broken:
            link.break_off("reset by the network")
            link.other.break_off("reset by the network")
        return len(broken)

    def heal(self) -> None:
        """Ends all faults of all paths. Open links stay."""
        for (source, target), path in self._paths.items():
            path.cuts = 0
            path.clear_faults()
            while path.clogs:
                self.unclog(source, target)

    # -- incarnations ---------------------------------------------------------------------------------------------

    def transport(self, incarnation: ProcessIncarnation, here: NetworkEndpoint) -> SimTransport:
        self._up[here.name] = True
        return SimTransport(self, incarnation, here)

    def incarnation_ended(self, incarnation: ProcessIncarnation, here: NetworkEndpoint, *, with_machine: bool) -> None:
        """The kernel of a killed process notifies its peers. A machine without power notifies no one."""
        self._up[here.name] = False
        for key in [key for key, listener in self._listeners.items() if listener.incarnation is incarnation]:
            del self._listeners[key]
        for link in [link for link in self._links.values() if link.incarnation is incarnation]:
            link.shut()
            if not with_machine:
                self.send_end(link, f"{here.name} died")

    # -- opening -------------------------------------------------------------------------------------------------

    def key(self, here: NetworkEndpoint, address: Address) -> tuple[str, Address]:
        """The path of a Unix socket is valid on its own machine only."""
        return (here.host if address.is_local_socket else "", address)

    def start_listening(self, key: tuple[str, Address], listener: _Listener) -> None:
        if key in self._listeners:
            raise InvalidRequest(f"{key[1]} is in use by {self._listeners[key].endpoint.name}")
        self._listeners[key] = listener

    def stop_listening(self, key: tuple[str, Address], incarnation: ProcessIncarnation) -> None:
        if key in self._listeners and self._listeners[key].incarnation is incarnation:
            del self._listeners[key]

    async def reach(self, here: NetworkEndpoint, address: Address) -> _Listener | None:
        """One round trip to a listener. None: no answer. Raises if the connection is refused."""
        await asyncio.sleep(self._latency_s(NetworkPath()))
        listener = self._listeners.get(self.key(here, address))
        if listener is None:
            if self._rng.happens(0.5):  # the machine is up and refuses, or it is down and does not answer
                raise Unreachable(f"{address} refused {here.name}: nothing listens there")
            return None
        there, back = self.path(here.name, listener.endpoint.name), self.path(listener.endpoint.name, here.name)
        passes = self._passes(there) and self._passes(back)
        await asyncio.sleep(self._latency_s(there))
        return listener if passes and listener.incarnation.alive else None

    def open_link(
        self, incarnation: ProcessIncarnation, here: NetworkEndpoint, port: int, listener: _Listener
    ) -> SimLink:
        ours = SimLink(self, incarnation, here, listener.address)
        theirs = SimLink(self, listener.incarnation, listener.endpoint, Address(here.host, port))
        ours.other, theirs.other = theirs, ours
        self._links[ours.number] = ours
        self._links[theirs.number] = theirs
        self.loop.call_soon(_accept, theirs, listener.on_open, context=listener.incarnation.context)
        return ours

    def forget(self, link: SimLink) -> None:
        self._links.pop(link.number, None)

    # -- frames --------------------------------------------------------------------------------------------------

    def flush_soon(self, link: SimLink) -> None:
        self.loop.call_soon(self.flush, link, context=self._kernel)

    def flush(self, link: SimLink) -> None:
        """Sends what is queued: all at once, or at the path's rate, or not while the path is clogged."""
        link.flush_due = False
        if not link.open:
            return
        path = self.path(link.here.name, link.other.here.name)
        if path.clogs:
            link.flush_due = True
            path.waiting.append(link)
            return
        while link.queue:
            frame = link.queue.popleft()
            link.queued_bytes -= len(frame)
            self._transmit(link, path, frame)
            if path.bytes_per_s is not None and link.queue:
                link.flush_due = True
                self.loop.call_later(len(frame) / path.bytes_per_s, self.flush, link, context=self._kernel)
                break
        link.wake_drained()

    def _transmit(self, link: SimLink, path: NetworkPath, frame: bytes) -> None:
        if not self._passes(path):
            return
        now = self.loop.time()
        arrival = now + self._latency_s(path)
        if self._rng.happens(self.conditions.reorder):
            self._arrive_at(arrival + self._rng.between(0.0, self.conditions.reorder_ms) / 1000.0, link.other, frame)
        else:
            link.last_arrival = arrival = max(arrival, link.last_arrival + SERIAL_S)
            self._arrive_at(arrival, link.other, frame)
        if self._rng.happens(self.conditions.duplicate):
            later = self._rng.between(0.0, self.conditions.reorder_ms) / 1000.0
            self._arrive_at(arrival + later, link.other, frame)

    def _arrive_at(self, when: float, link: SimLink, frame: bytes) -> None:
        self.loop.call_at(when, self._arrive, link, frame, context=self._kernel)

    def _arrive(self, link: SimLink, frame: bytes) -> None:
        incarnation = link.incarnation
        if not incarnation.alive:
            # The machine may have rebooted. Its kernel does not know this link and answers with a reset.
            if self._up.get(link.here.name, False):
                self.send_end(link, f"{link.here.name} does not know this link")
            return
        if link.open:
            self._narrative.delivered(link.other.here.number, link.here.number, zlib.crc32(frame))
            link.arrive(frame)

    def send_end(self, link: SimLink, cause: str) -> None:
        """Notifies the other end after the frames on the way. A cut path loses the notification."""
        path = self.path(link.here.name, link.other.here.name)
        if self._passes(path):
            arrival = max(self.loop.time() + self._latency_s(path), link.last_arrival + SERIAL_S)
            self.loop.call_at(arrival, self._end, link.other, cause, context=self._kernel)

    def _end(self, link: SimLink, cause: str) -> None:
        if link.open and link.incarnation.alive:
            link.arrive(LinkEnd(cause))

    def _passes(self, path: NetworkPath) -> bool:
        if path.cuts:
            return False
        return not self._rng.happens(self.conditions.loss + path.extra_loss)

    def _latency_s(self, path: NetworkPath) -> float:
        conditions = self.conditions
        rng = self._rng
        ms = conditions.latency_ms + path.extra_latency_ms + rng.exponential(conditions.jitter_ms)
        if rng.happens(conditions.tail):
            ms += rng.exponential(conditions.tail_ms)
        return ms / 1000.0


def _accept(link: SimLink, on_open: OpenLink) -> None:
    link.attach(on_open(link))

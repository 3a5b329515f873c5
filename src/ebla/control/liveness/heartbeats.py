"""Heartbeats to every other member, and the view of the peers that follows from their answers.

`failure_detector.py` decides what an answer or its absence means. Heartbeats overlap: the next one does not wait for
the answer to the last, so that neither one lost frame nor a long round trip is mistaken for silence.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ebla.control.liveness.failure_detector import FailureDetector, PeerLiveness, PeerState, RoundTrip
from ebla.model.errors import EblaError
from ebla.model.identity import Address, HostId
from ebla.options import DEFAULT_LIMITS
from ebla.ports.clock import Clock
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import Peers, PeersContext, RouteState, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import HEARTBEAT, HeartbeatAnswer, HeartbeatRequest


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    heartbeat_ms: int = DEFAULT_LIMITS.peer_heartbeat_ms
    silence_ms: int = DEFAULT_LIMITS.peer_silence_ms
    in_flight_max: int = 16
    """Heartbeats to one peer in flight at once."""


class PeerAddresses(Protocol):
    def peers(self) -> tuple[Address, ...]:
        """Where the control processes of the other members listen, sorted. May change between calls."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatConfig:
    clock: Clock
    members: PeerAddresses
    limits: LivenessLimits
    incarnation: int
    """A different number at each start of this process, so that a restart between two heartbeats shows."""


class HeartbeatMonitor:
    def __init__(self, peers: Peers, context: PeersContext, config: HeartbeatConfig) -> None:
        self._peers = peers
        self._context = context
        self._clock = config.clock
        self._members = config.members
        self._limits = config.limits
        self._incarnation = config.incarnation
        self._detector = FailureDetector(config.limits.silence_ms)
        self._loop = asyncio.get_running_loop()
        self._hosts: dict[Address, HostId] = {}
        self._in_flight: dict[Address, int] = {}
        self._serial = 0
        self.on_change: Callable[[], None] = _nothing
        """Called when a peer went up or down."""

    def peers(self) -> tuple[PeerLiveness, ...]:
        """The state of each peer now: a reader never sees an `up` that has expired."""
        self._check()
        return self._detector.peers()

    def serve_on(self, server: Server) -> None:
        server.serve(HEARTBEAT, self._answer)

    async def run(self) -> None:
        """Until cancelled."""
        watchers: dict[Address, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                members = self._members.peers()
                self._detector.watch(members, self._clock.boot_ms())
                for peer in [peer for peer in watchers if peer not in members]:
                    watchers.pop(peer).cancel("no longer a member")
                    self._forget(peer)
                for peer in members:
                    if peer not in watchers:
                        watchers[peer] = tasks.create_task(self._watch(peer, tasks))
                self._check()
                await asyncio.sleep(self._limits.heartbeat_ms / 1000)

    def _answer(self, request: HeartbeatRequest, _call: IncomingCall) -> HeartbeatAnswer:
        return HeartbeatAnswer(request.serial, self._incarnation)

    def _check(self) -> None:
        for peer in self._detector.check(self._clock.boot_ms()):
            self._report_change(peer)

    async def _watch(self, peer: Address, tasks: asyncio.TaskGroup) -> None:
        while True:
            host = await self._identify(peer)
            started_ms = self._clock.boot_ms()
            while not self._is_lost(peer, started_ms):
                if self._in_flight.get(peer, 0) < self._limits.in_flight_max:
                    tasks.create_task(self._beat(peer, host))
                await asyncio.sleep(self._limits.heartbeat_ms / 1000)

    async def _identify(self, peer: Address) -> HostId:
        """Finds out which host is there, until one answers. Also each time before a peer that was down returns: another
        host may have taken its address, which would reject heartbeats for the old one forever.

        Earlier connections are dropped. If the peer no longer knows one (it lost power, or closed it during a
        partition), that connection swallows every heartbeat, and the peer would be considered down forever.
        """
        while True:
            try:
                caller, welcome = await connect(self._context, peer, ConnectionTarget(Lane.CONTROL))
            except EblaError:
                await asyncio.sleep(self._limits.heartbeat_ms / 1000)
                continue
            caller.close("identified")
            self._forget(peer)
            host = self._hosts[peer] = welcome.introduction.host
            self._peers.set_address(host, peer)
            return host

    async def _beat(self, peer: Address, host: HostId) -> None:
        self._serial += 1
        self._in_flight[peer] = self._in_flight.get(peer, 0) + 1
        connected = self._connected(host)
        asked_ms, began = self._clock.boot_ms(), self._loop.time()
        try:
            request = HeartbeatRequest(self._serial, self._incarnation)
            answer = await self._peers.call(host, HEARTBEAT, request, self._limits.silence_ms)
        except EblaError:
            return  # an error counts as silence
        finally:
            self._in_flight[peer] -= 1
        round_trip_us = int((self._loop.time() - began) * 1_000_000) if connected else None
        answered = RoundTrip(
            peer=peer, host=host, incarnation=answer.incarnation, asked_ms=asked_ms, round_trip_us=round_trip_us
        )
        changed = self._detector.answered(answered, self._clock.boot_ms())
        if changed is not None:
            self._report_change(changed)

    def _is_lost(self, peer: Address, started_ms: int) -> bool:
        now_ms = self._clock.boot_ms()
        state = {peer.peer: peer.state for peer in self._detector.peers()}
        return state.get(peer) is not PeerState.UP and now_ms - started_ms >= self._limits.silence_ms

    def _connected(self, host: HostId) -> bool:
        return any(
            route.host == host and route.lane is Lane.CONTROL and route.state is RouteState.READY
            for route in self._peers.routes()
        )

    def _forget(self, peer: Address) -> None:
        host = self._hosts.pop(peer, None)
        if host is not None and host not in self._hosts.values():
            self._peers.forget(host)

    def _report_change(self, peer: PeerLiveness) -> None:
        details = {"peer": str(peer.peer), "host": str(peer.host), "round_trip_us": peer.round_trip_us}
        self._context.report(f"liveness.peer_{peer.state.value}", details)
        self.on_change()


def _nothing() -> None:
    pass

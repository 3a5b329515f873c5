"""Heartbeats to every other member, and the view of the peers that follows from their answers.

`failure_detector.py` decides what an answer or its absence means. Heartbeats overlap: the next one does not wait for
the answer to the last, so that neither one lost frame nor a long round trip is mistaken for silence.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from ebla.control.liveness.clock_skew import PeerClock, ahead_of_majority_ms, clock_offset_ms, measure_clock
from ebla.control.liveness.failure_detector import FailureDetector, PeerLiveness, PeerState, RoundTrip
from ebla.model.errors import EblaError
from ebla.model.identity import Address, HostId, TopologyVersion
from ebla.options import NodeLimits
from ebla.ports.clock import Clock
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import Peers, PeersContext, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import HEARTBEAT, HeartbeatAnswer, HeartbeatRequest

HEARTBEATS_IN_FLIGHT_MAX = 16
"""To one peer."""


class PeerAddresses(Protocol):
    def peers(self) -> tuple[Address, ...]:
        """Where the control processes of the other members listen, sorted. May change between calls."""
        ...


class HeartbeatMonitor:
    def __init__(
        self,
        peers: Peers,
        context: PeersContext,
        members: PeerAddresses,
        clock: Clock,
        limits: NodeLimits,
        *,
        incarnation: int,
    ) -> None:
        """`incarnation`: another number at each start of this process, so that a restart between two heartbeats
        shows."""
        self._peers = peers
        self._context = context
        self._members = members
        self._clock = clock
        self._heartbeat_ms = limits.peer_heartbeat_ms
        self._silence_ms = limits.peer_silence_ms
        self._clock_skew_warn_ms = limits.clock_skew_warn_ms
        self._incarnation = incarnation
        self._detector = FailureDetector(limits.peer_silence_ms)
        self._loop = asyncio.get_running_loop()
        self._hosts: dict[Address, HostId] = {}
        self._in_flight: dict[Address, int] = {}
        self._clocks: dict[HostId, PeerClock] = {}
        self._serial = 0
        self.on_change: Callable[[], None] = _nothing
        """Called when a peer went up or down."""
        self.on_up: Callable[[HostId], None] = _nobody
        """Called when a host came up or restarted."""
        self.excluded_in: Callable[[HostId], TopologyVersion] = _in_no_version
        """The version of the topology in which the sender of a heartbeat is excluded; 0: it is not."""
        self.on_excluded: Callable[[TopologyVersion], None] = _nothing_heard
        """Called when a peer answers that this node is excluded in that version."""

    def peers(self) -> tuple[PeerLiveness, ...]:
        """The state of each peer now: a reader never sees an `up` that has expired."""
        self._check()
        return self._detector.peers()

    def clocks(self) -> Mapping[HostId, PeerClock]:
        """Of the peers that are up: the clock of another may have been set since."""
        up = [peer.host for peer in self.peers() if peer.state is PeerState.UP]
        return {host: self._clocks[host] for host in up if host in self._clocks}

    def clock_ahead_ms(self) -> int:
        """How far the own clock is ahead of the clocks of more than half of the members."""
        return ahead_of_majority_ms((one.offset_ms for one in self.clocks().values()), len(self._members.peers()) + 1)

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
                await asyncio.sleep(self._heartbeat_ms / 1000)

    def _answer(self, request: HeartbeatRequest, call: IncomingCall) -> HeartbeatAnswer:
        return HeartbeatAnswer(
            serial=request.serial,
            incarnation=self._incarnation,
            wall_us=self._clock.wall_us(),
            excluded_in=self.excluded_in(call.peer.host),
        )

    def _check(self) -> None:
        for peer in self._detector.check(self._clock.boot_ms()):
            self._report_change(peer)

    async def _watch(self, peer: Address, tasks: asyncio.TaskGroup) -> None:
        while True:
            host = await self._identify(peer)
            started_ms = self._clock.boot_ms()
            while not self._is_lost(peer, started_ms):
                if self._in_flight.get(peer, 0) < HEARTBEATS_IN_FLIGHT_MAX:
                    tasks.create_task(self._beat(peer, host))
                await asyncio.sleep(self._heartbeat_ms / 1000)

    async def _identify(self, peer: Address) -> HostId:
        """Finds out which host is there, until one answers. Also each time before a peer that was down returns: another
        host may have taken its address, which would reject heartbeats for the old one forever.

        Earlier connections are dropped. If the peer no longer knows one (it lost power, or closed it during a
        partition), that connection swallows every heartbeat until the wire gives it up, and the peer would be
        considered down for seconds longer.
        """
        while True:
            try:
                caller, welcome = await connect(self._context, peer, ConnectionTarget(Lane.CONTROL))
            except EblaError:
                await asyncio.sleep(self._heartbeat_ms / 1000)
                continue
            caller.close("identified")
            self._forget(peer)
            host = self._hosts[peer] = welcome.introduction.host
            self._peers.set_address(host, peer)
            return host

    async def _beat(self, peer: Address, host: HostId) -> None:
        self._serial += 1
        self._in_flight[peer] = self._in_flight.get(peer, 0) + 1
        connected = self._peers.is_connected(host, Lane.CONTROL)
        asked_ms, asked_us, began = self._clock.boot_ms(), self._clock.wall_us(), self._loop.time()
        try:
            request = HeartbeatRequest(self._serial, self._incarnation)
            answer = await self._peers.call(host, HEARTBEAT, request, self._silence_ms)
        except EblaError:
            return  # an error counts as silence
        finally:
            self._in_flight[peer] -= 1
        if answer.excluded_in:
            self.on_excluded(answer.excluded_in)
        round_trip_us = int((self._loop.time() - began) * 1_000_000) if connected else None
        if connected and answer.wall_us:
            self._measure_clock(peer, host, clock_offset_ms(asked_us, answer.wall_us, self._clock.wall_us()))
        answered = RoundTrip(
            peer=peer, host=host, incarnation=answer.incarnation, asked_ms=asked_ms, round_trip_us=round_trip_us
        )
        changed = self._detector.answered(answered, self._clock.boot_ms())
        if changed is not None:
            self._report_change(changed)

    def _measure_clock(self, peer: Address, host: HostId, offset_ms: int) -> None:
        before = self._clocks.get(host)
        now = self._clocks[host] = measure_clock(before, offset_ms, self._clock_skew_warn_ms)
        if now.is_skewed is not (before is not None and before.is_skewed):
            state = "begun" if now.is_skewed else "ended"
            details = {"peer": str(peer), "host": str(host), "offset_ms": offset_ms, "state": state}
            self._context.report("clock.skew", details)

    def _is_lost(self, peer: Address, started_ms: int) -> bool:
        now_ms = self._clock.boot_ms()
        state = {peer.peer: peer.state for peer in self._detector.peers()}
        return state.get(peer) is not PeerState.UP and now_ms - started_ms >= self._silence_ms

    def _forget(self, peer: Address) -> None:
        host = self._hosts.pop(peer, None)
        if host is not None and host not in self._hosts.values():
            self._peers.forget(host)
            self._clocks.pop(host, None)

    def _report_change(self, peer: PeerLiveness) -> None:
        details = {"peer": str(peer.peer), "host": str(peer.host), "round_trip_us": peer.round_trip_us}
        self._context.report(f"liveness.peer_{peer.state.value}", details)
        self.on_change()
        if peer.state is PeerState.UP and peer.host is not None:
            self.on_up(peer.host)


def _nothing() -> None:
    pass


def _nobody(_host: HostId) -> None:
    pass


def _in_no_version(_host: HostId) -> TopologyVersion:
    return TopologyVersion(0)


def _nothing_heard(_version: TopologyVersion) -> None:
    pass

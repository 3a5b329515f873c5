"""Decides which peers are up. Pure: round trips and time in, states out.

Only a completed round trip counts as hearing from a peer, and it counts from the moment the request left. A peer whose
messages arrive but that ours do not reach is down for both sides, so a link that is cut in one direction gives both
nodes the same view of each other. And an answer that waited in a queue while this process was stopped proves nothing.

What it promises, with `silence_ms` as its only limit:

- INV-LIVE-1: a peer considered up was alive, and reachable both ways, within the last `silence_ms`;
- INV-LIVE-2: a peer that has answered a request of the last `silence_ms` is considered up.

Nothing here is proof: a silent peer may be alive and serving. Code that needs it to be gone uses a lease or a fence.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ebla.group0.members import Member
from ebla.model.identity import Address, HostId
from ebla.model.opinions import Opinion, OpinionState


class PeerState(enum.StrEnum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """One completed round trip."""

    peer: Address
    host: HostId
    incarnation: int
    asked_ms: int
    """When the request left: the peer was alive after that."""
    round_trip_us: int | None
    """None if the time would include setting up a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLiveness:
    """What this node knows about one peer. Times are of this node's boot clock."""

    peer: Address
    state: PeerState
    since_ms: int
    """When the state last changed, or the peer last restarted."""
    host: HostId | None = None
    """The host that last answered there; None until one did."""
    incarnation: int = 0
    heard_ms: int | None = None
    """When the latest request that it answered had left."""
    round_trip_us: int | None = None
    """Smoothed: an eighth of each new measurement."""
    deviation_us: int = 0
    """Mean deviation of the measurements, smoothed by a quarter."""


class FailureDetector:
    def __init__(self, silence_ms: int) -> None:
        assert silence_ms > 0
        self.silence_ms = silence_ms
        self._peers: dict[Address, PeerLiveness] = {}

    def peers(self) -> tuple[PeerLiveness, ...]:
        """One for each peer, sorted by address."""
        return tuple(self._peers[peer] for peer in sorted(self._peers))

    def watch(self, peers: Sequence[Address], now_ms: int) -> None:
        """Watches exactly these peers. A new one is down until it answers."""
        self._peers = {
            peer: self._peers.get(peer, PeerLiveness(peer=peer, state=PeerState.DOWN, since_ms=now_ms))
            for peer in peers
        }

    def answered(self, answer: RoundTrip, now_ms: int) -> PeerLiveness | None:
        """Returns the new state if the peer came up or restarted."""
        before = self._peers.get(answer.peer)
        if before is None or now_ms - answer.asked_ms >= self.silence_ms:
            return None
        same = before.host == answer.host and before.incarnation == answer.incarnation
        if same and before.heard_ms is not None and before.state is PeerState.UP:
            heard = replace(before, heard_ms=max(before.heard_ms, answer.asked_ms))
            self._peers[answer.peer] = _measured(heard, answer.round_trip_us)
            return None
        fresh = PeerLiveness(
            peer=answer.peer,
            state=PeerState.UP,
            since_ms=now_ms,
            host=answer.host,
            incarnation=answer.incarnation,
            heard_ms=answer.asked_ms,
        )
        self._peers[answer.peer] = _measured(fresh, answer.round_trip_us)
        return self._peers[answer.peer]

    def check(self, now_ms: int) -> list[PeerLiveness]:
        """Returns the peers that went down."""
        went_down: list[PeerLiveness] = []
        for address, peer in self._peers.items():
            if peer.state is PeerState.UP and self._silent(peer, now_ms):
                went_down.append(replace(peer, state=PeerState.DOWN, since_ms=now_ms))
                self._peers[address] = went_down[-1]
        return went_down

    def _silent(self, peer: PeerLiveness, now_ms: int) -> bool:
        assert peer.heard_ms is not None
        return now_ms - peer.heard_ms >= self.silence_ms


def _measured(peer: PeerLiveness, sample_us: int | None) -> PeerLiveness:
    """The estimator of TCP's retransmission timer (RFC 6298): slow enough to ignore one late answer."""
    if sample_us is None:
        return peer
    if peer.round_trip_us is None:
        return replace(peer, round_trip_us=sample_us, deviation_us=sample_us // 2)
    away = abs(sample_us - peer.round_trip_us)
    return replace(
        peer,
        round_trip_us=peer.round_trip_us + (sample_us - peer.round_trip_us) // 8,
        deviation_us=peer.deviation_us + (away - peer.deviation_us) // 4,
    )


def down_hosts(
    members: Iterable[Member], peers: Sequence[PeerLiveness], own: HostId, watched_since_ms: int
) -> tuple[HostId, ...]:
    """The nodes that requests need not be sent to, sorted. A peer that is watched only since after `watched_since_ms`
    and was never heard from counts as up: control or the peer has just started, and the peer had no time to answer
    yet. Hosts are told apart by their ids: a node that uses the address of the dead one it replaces answers for itself
    only."""
    up = {peer.host for peer in peers if peer.state is PeerState.UP}
    given_up = {peer.peer for peer in peers if peer.heard_ms is not None or peer.since_ms <= watched_since_ms}
    down = (
        member.host
        for member in members
        if member.host != own and member.host not in up and (not member.listens or member.address in given_up)
    )
    return tuple(sorted(down))


def opinions_of(
    members: Iterable[Member], peers: Sequence[PeerLiveness], own: HostId, now_ms: int, silence_ms: int
) -> tuple[Opinion, ...]:
    """What this node believes of each present member, by the rules of `down_hosts`, sorted by host."""
    present = sorted((member for member in members if member.present), key=lambda member: member.host)
    down = down_hosts(present, peers, own, now_ms - silence_ms)
    up_since_ms = {peer.host: peer.since_ms for peer in peers if peer.state is PeerState.UP}
    since_ms = {peer.peer: peer.since_ms for peer in peers}
    found = []
    for member in present:
        if member.host in down:
            state, since = OpinionState.DOWN, since_ms.get(member.address, now_ms)
        elif member.host == own or member.host in up_since_ms:
            state, since = OpinionState.UP, up_since_ms.get(member.host, now_ms)
        else:
            state, since = OpinionState.NONE, now_ms
        found.append(Opinion(voter=own, host=member.host, state=state, for_ms=max(0, now_ms - since)))
    return tuple(found)

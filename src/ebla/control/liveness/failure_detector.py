"""Which peers are held to be up, as data. Pure: answers and time in, opinions out.

Only a completed round trip counts as hearing from a peer, and it counts from the moment the question left. A peer
whose words arrive but whom ours do not reach is down for both sides, so a link that is cut in one direction splits no
two nodes' opinions of each other. And an answer that lay in a queue while this process was stopped proves nothing.

What it promises, with `silence_ms` as its one limit:

- INV-LIVE-1: a peer held to be up was alive, and reachable both ways, within the last `silence_ms`;
- INV-LIVE-2: a peer that has answered a question of the last `silence_ms` is held to be up.

Nothing here is proof: a silent peer may be alive and serving. Whoever needs it to be gone uses a lease or a fence.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ebla.group0.members import Member
from ebla.model.identity import Address, HostId


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
    """When the question left: the peer was alive after that."""
    round_trip_us: int | None
    """None where the time would include the making of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLiveness:
    """What this node holds of one peer. Times are of this node's boot clock."""

    peer: Address
    state: PeerState
    since_ms: int
    """When the standing last changed, or the peer last started anew."""
    host: HostId | None = None
    """Who answered there last; None until somebody did."""
    incarnation: int = 0
    heard_ms: int | None = None
    """When the youngest question that it answered had left."""
    round_trip_us: int | None = None
    """Smoothed: an eighth of each new measurement."""
    deviation_us: int = 0
    """Mean deviation of the measurements, smoothed by a quarter."""


class FailureDetector:
    def __init__(self, silence_ms: int) -> None:
        assert silence_ms > 0
        self.silence_ms = silence_ms
        self._opinions: dict[Address, PeerLiveness] = {}

    def opinions(self) -> tuple[PeerLiveness, ...]:
        """One for each peer, in the order of their addresses."""
        return tuple(self._opinions[peer] for peer in sorted(self._opinions))

    def watch(self, peers: Sequence[Address], now_ms: int) -> None:
        """From now on these peers and no others. A new one is down until it answers."""
        self._opinions = {
            peer: self._opinions.get(peer, PeerLiveness(peer=peer, state=PeerState.DOWN, since_ms=now_ms))
            for peer in peers
        }

    def answered(self, answer: RoundTrip, now_ms: int) -> PeerLiveness | None:
        """Returns the new opinion where the peer came up or came back as another."""
        before = self._opinions.get(answer.peer)
        if before is None or now_ms - answer.asked_ms >= self.silence_ms:
            return None
        same = before.host == answer.host and before.incarnation == answer.incarnation
        if same and before.heard_ms is not None and before.state is PeerState.UP:
            heard = replace(before, heard_ms=max(before.heard_ms, answer.asked_ms))
            self._opinions[answer.peer] = _measured(heard, answer.round_trip_us)
            return None
        fresh = PeerLiveness(
            peer=answer.peer,
            state=PeerState.UP,
            since_ms=now_ms,
            host=answer.host,
            incarnation=answer.incarnation,
            heard_ms=answer.asked_ms,
        )
        self._opinions[answer.peer] = _measured(fresh, answer.round_trip_us)
        return self._opinions[answer.peer]

    def look(self, now_ms: int) -> list[PeerLiveness]:
        """Returns the opinions that turned to down."""
        turned: list[PeerLiveness] = []
        for peer, opinion in self._opinions.items():
            if opinion.state is PeerState.UP and self._silent(opinion, now_ms):
                turned.append(replace(opinion, state=PeerState.DOWN, since_ms=now_ms))
                self._opinions[peer] = turned[-1]
        return turned

    def _silent(self, opinion: PeerLiveness, now_ms: int) -> bool:
        assert opinion.heard_ms is not None
        return now_ms - opinion.heard_ms >= self.silence_ms


def _measured(opinion: PeerLiveness, sample_us: int | None) -> PeerLiveness:
    """The estimator of TCP's retransmission timer (RFC 6298): slow enough for one late answer not to show as news."""
    if sample_us is None:
        return opinion
    if opinion.round_trip_us is None:
        return replace(opinion, round_trip_us=sample_us, deviation_us=sample_us // 2)
    away = abs(sample_us - opinion.round_trip_us)
    return replace(
        opinion,
        round_trip_us=opinion.round_trip_us + (sample_us - opinion.round_trip_us) // 8,
        deviation_us=opinion.deviation_us + (away - opinion.deviation_us) // 4,
    )


def down_hosts(
    members: Iterable[Member], opinions: Sequence[PeerLiveness], own: HostId, watched_since_ms: int
) -> tuple[HostId, ...]:
    """Sorted. A peer that is watched since a later moment than `watched_since_ms` and was never heard counts as up:
    control has just started or the peer has just come, and nobody is given up before he had the time to answer."""
    up = {opinion.host for opinion in opinions if opinion.state is PeerState.UP}
    given_up = {
        opinion.peer for opinion in opinions if opinion.heard_ms is not None or opinion.since_ms <= watched_since_ms
    }
    down = (
        member.host
        for member in members
        if member.host != own and member.host not in up and (not member.present or member.address in given_up)
    )
    return tuple(sorted(down))

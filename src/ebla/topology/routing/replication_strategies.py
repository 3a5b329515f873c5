"""The hosts of a vnode by SimpleStrategy and NetworkTopologyStrategy, exactly as drivers compute them.

Drivers send requests directly to the replicas they compute from the ring, so a difference would cost every request a
hop. The order matters too: the first replica is the primary one. From the hosts before and after a ring change follow
its streams: per token range, its sources and destinations.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.model.identity import HostId
from ebla.topology.routing.vnode_ring import TokenRing
from ebla.topology.snapshot import Replication
from ebla.topology.states import Strategy


@dataclass(frozen=True, slots=True)
class NodeLocation:
    datacenter: str
    rack: str


class RingReplicas:
    """Hosts per vnode of one ring, computed lazily: most processes need few of the vnodes."""

    __slots__ = ("_datacenters", "_hosts_at", "_replication", "ring")

    def __init__(self, ring: TokenRing, replication: Replication, places: Mapping[HostId, NodeLocation]) -> None:
        self.ring = ring
        self._replication = replication
        self._datacenters = _datacenters_of(ring, places)
        self._hosts_at: dict[int, tuple[HostId, ...]] = {}

    def position_of(self, token: int) -> int:
        """Which vnode has the token: the one whose last token is the first at or after it, around the ring."""
        position = bisect_left(self.ring.tokens, token)
        return position if position < len(self.ring.tokens) else 0

    def hosts_at(self, position: int) -> tuple[HostId, ...]:
        """The replicas of a vnode, the primary one first; empty in an empty ring."""
        hosts = self._hosts_at.get(position)
        if hosts is None:
            hosts = self._hosts_at[position] = self._compute(position)
        return hosts

    def hosts_of(self, token: int) -> tuple[HostId, ...]:
        return self.hosts_at(self.position_of(token))

    def _compute(self, position: int) -> tuple[HostId, ...]:
        match self._replication.strategy:
            case Strategy.SIMPLE:
                return _simple(self.ring, position, self._replication.total)
            case Strategy.NETWORK_TOPOLOGY:
                return tuple(
                    host
                    for name, part in self._datacenters.items()
                    for host in _in_datacenter(part, position, self._replication.factor(name))
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DatacenterPart:
    """The vnodes of one datacenter's nodes."""

    positions: tuple[int, ...]
    owners: tuple[HostId, ...]
    racks: Mapping[HostId, str]
    rack_count: int


def _datacenters_of(ring: TokenRing, places: Mapping[HostId, NodeLocation]) -> dict[str, _DatacenterPart]:
    """In the order in which they first appear on the ring."""
    positions: dict[str, list[int]] = {}
    for position, host in enumerate(ring.owners):
        positions.setdefault(places[host].datacenter, []).append(position)
    parts = {}
    for name, own in positions.items():
        owners = tuple(ring.owners[position] for position in own)
        racks = {host: places[host].rack for host in owners}
        parts[name] = _DatacenterPart(
            positions=tuple(own), owners=owners, racks=racks, rack_count=len(set(racks.values()))
        )
    return parts


def _simple(ring: TokenRing, position: int, factor: int) -> tuple[HostId, ...]:
    """The next distinct owners along the ring."""
    found: dict[HostId, None] = {}
    for step in range(len(ring.owners)):
        if len(found) == factor:
            break
        found[ring.owners[(position + step) % len(ring.owners)]] = None
    return tuple(found)


def _in_datacenter(part: _DatacenterPart, position: int, factor: int) -> tuple[HostId, ...]:
    """The next distinct owners of the datacenter, each from a rack that has none yet while there is such a rack; once
    every rack has one, the skipped owners come first."""
    wanted = min(factor, len(part.racks))
    found: dict[HostId, None] = {}
    passed_over: dict[HostId, None] = {}
    racks_used: dict[str, None] = {}
    start = bisect_left(part.positions, position)
    for step in range(len(part.owners)):
        if len(found) == wanted:
            break
        host = part.owners[(start + step) % len(part.owners)]
        rack = part.racks[host]
        if host in found:
            continue
        if rack in racks_used and len(racks_used) < part.rack_count:
            passed_over[host] = None
            continue
        found[host] = None
        racks_used[rack] = None
        if len(racks_used) == part.rack_count:
            for skipped in list(passed_over)[: wanted - len(found)]:
                found[skipped] = None
            passed_over.clear()
    return tuple(found)

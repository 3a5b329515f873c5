"""What `ebla status` says of a node: its peers, its processes, its topology."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ebla.control.liveness.clock_skew import PeerClock
from ebla.control.liveness.failure_detector import PeerLiveness, PeerState
from ebla.model.identity import HostId, TableId
from ebla.topology.snapshot import Snapshot
from ebla.topology.tablet_map import TabletMap
from ebla.wire.feed_messages import ChildReport
from ebla.wire.verbs import ChildBeatRequest, NodeCounts, PeerStatus, ProcessStatus, TopologyStatus


def peer_status(peer: PeerLiveness, now_ms: int, clocks: Mapping[HostId, PeerClock]) -> PeerStatus:
    clock = None if peer.host is None else clocks.get(peer.host)
    return PeerStatus(
        host=peer.host,
        address=str(peer.peer),
        up=peer.state is PeerState.UP,
        heard_ms_ago=None if peer.heard_ms is None else now_ms - peer.heard_ms,
        round_trip_us=peer.round_trip_us,
        since_ms_ago=now_ms - peer.since_ms,
        clock_offset_ms=None if clock is None else clock.offset_ms,
        is_clock_skewed=clock is not None and clock.is_skewed,
    )


def with_versions(
    statuses: Sequence[ProcessStatus], reports: Mapping[str, ChildReport], beats: Mapping[str, ChildBeatRequest]
) -> tuple[ProcessStatus, ...]:
    """A report of an earlier process of the same name does not count for its successor."""
    return tuple(_with_version(one, reports.get(one.name), beats.get(one.name)) for one in statuses)


def _with_version(status: ProcessStatus, report: ChildReport | None, beat: ChildBeatRequest | None) -> ProcessStatus:
    known = report if report is not None and report.pid == status.pid else None
    heard = beat if beat is not None and beat.pid == status.pid else None
    return msgspec.structs.replace(
        status,
        version=None if known is None else known.version,
        serving=heard is not None and heard.serving,
        trouble="" if known is None else known.trouble,
        load_bytes=None if heard is None else heard.load_bytes,
    )


def child_warnings(statuses: Sequence[ProcessStatus], beats: Mapping[str, ChildBeatRequest]) -> tuple[str, ...]:
    """What children that run now warn of, each sentence once with the names of those that say it."""
    said: dict[str, list[str]] = {}
    for one in statuses:
        beat = beats.get(one.name)
        if beat is not None and beat.pid == one.pid and beat.warning:
            said.setdefault(beat.warning, []).append(one.name)
    return tuple(f"{', '.join(names)}: {warning}" for warning, names in said.items())


@dataclass(slots=True)
class TabletCounter:
    """Tablets by host. Maps that have not changed since the last call are not counted again: a large cluster has
    hundreds of thousands of replicas, and `ebla up` asks every second."""

    _counted: dict[TableId, tuple[TabletMap, Counter[HostId]]] = field(default_factory=dict)

    def count(self, snapshot: Snapshot) -> Counter[HostId]:
        self._counted = {table: self._count_table(table, tablets) for table, tablets in snapshot.tablets.items()}
        total: Counter[HostId] = Counter()
        for _, counts in self._counted.values():
            total.update(counts)
        return total

    def _count_table(self, table: TableId, tablets: TabletMap) -> tuple[TabletMap, Counter[HostId]]:
        known = self._counted.get(table)
        if known is not None and known[0] is tablets:
            return known
        return tablets, Counter(replica.host for replicas in tablets.replica_sets() for replica in replicas)


def topology_status(snapshot: Snapshot, waits_for: str, tablets: Mapping[HostId, int]) -> TopologyStatus:
    nodes = tuple((node.host, node.state.value) for node in snapshot.members())
    transition = "" if snapshot.transition is None else snapshot.transition.value
    excluded = tuple((host, _how_excluded(snapshot, host)) for host in snapshot.excluded_hosts)
    return TopologyStatus(
        version=snapshot.version,
        fence=snapshot.fence,
        nodes=nodes,
        transition=transition,
        waits_for=waits_for,
        excluded=excluded,
        counts=tuple(
            NodeCounts(host=node.host, shards=node.shard_count, tablets=tablets.get(node.host, 0))
            for node in snapshot.members()
        ),
        incomplete=tuple(node.host for node in snapshot.members() if node.is_incomplete),
    )


def _how_excluded(snapshot: Snapshot, host: HostId) -> str:
    exclusion = snapshot.exclusion_of(host)
    if exclusion is None:
        return "by a request"
    return "automatically" if exclusion.is_automatic else "by hand"

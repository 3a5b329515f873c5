"""Views of clusters with fixed figures, for what `ebla status` prints."""

import uuid

from ebla.client.cluster_view import ClusterView, NodeProbe, build_cluster_view
from ebla.group0.members import Member, MemberRole
from ebla.leadership.messages import LeaseState
from ebla.model.identity import Address, ClusterId, HistoryId, HostId, TopologyVersion
from ebla.model.records.jobs import PipelineState
from ebla.wire.group0_messages import Group0Report, MemberReport
from ebla.wire.leadership_messages import HeldLeaseReport, LeadershipReport
from ebla.wire.verbs import NodeCounts, PeerStatus, ProcessState, ProcessStatus, StatusAnswer, TopologyStatus

VERSION = TopologyVersion(42)
THREE_HOURS_MS = 11_520_000
LOAD_BYTES = 644_245_094


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number << 96 | number))


def three_nodes(
    *, rack: str = "rack1", address: str = "127.0.0.", transition: str = "", state3: str = "normal"
) -> ClusterView:
    """Node 1 leads and has the pipeline, node 2 warns, node 3 is stopped."""
    cluster = _Cluster(rack, address, transition, state3)
    probes = [
        cluster.answered(1),
        cluster.answered(2, "shard-0: less than 256 MiB are free: writes are refused, reads go on"),
        NodeProbe(name="node3", address=cluster.at(3), host=host(3), trouble="stopped: asked to stop"),
    ]
    return build_cluster_view(probes, PipelineState(host=host(1), pid=500, state="ready", master="local[*]"))


def nothing_runs() -> ClusterView:
    return build_cluster_view(
        [NodeProbe(name=f"node{one}", address=f"127.0.0.{one}:7000", trouble="not running") for one in (1, 2)]
    )


class _Cluster:
    def __init__(self, rack: str, address: str, transition: str, state3: str) -> None:
        self.rack = rack
        self.address = address
        self.transition = transition
        self.state3 = state3

    def at(self, number: int) -> str:
        return str(Address(f"{self.address}{number}", 7000))

    def answered(self, number: int, *warnings: str) -> NodeProbe:
        answer = StatusAnswer(
            host=host(number),
            cluster=ClusterId(uuid.UUID(int=99)),
            cluster_name="ebla",
            address=self.at(number),
            started_wall_us=0,
            processes=self.processes(number),
            peers=tuple(self.peer(other) for other in (1, 2, 3) if other != number),
            uptime_ms=THREE_HOURS_MS,
            group0=self.group0(number),
            topology=self.topology(),
            warnings=warnings,
            leases=self.leases(number),
        )
        return NodeProbe(name=f"node{number}", address=self.at(number), host=host(number), answer=answer)

    def peer(self, number: int) -> PeerStatus:
        return PeerStatus(host=host(number), address=self.at(number), up=number != 3, round_trip_us=500)

    def processes(self, number: int) -> tuple[ProcessStatus, ...]:
        names = ["control", "shard-0", "shard-1", "bulk", *(["pipeline"] if number == 1 else [])]
        return tuple(
            ProcessStatus(
                name=name,
                pid=100 * number + 100 * place,
                started_wall_us=0,
                state=ProcessState.RUNNING,
                version=VERSION,
                serving=True,
                load_bytes=LOAD_BYTES if name.startswith("shard-") else None,
            )
            for place, name in enumerate(names)
        )

    def group0(self, number: int) -> Group0Report:
        members = tuple(
            MemberReport(
                Member(
                    host=host(one),
                    role=MemberRole.VOTER,
                    address=Address(f"{self.address}{one}", 7000),
                    rack=self.rack,
                ),
                0 if number == 1 and one != 3 else None,
            )
            for one in (1, 2, 3)
        )
        return Group0Report(
            history=HistoryId(uuid.UUID(int=98)),
            role="leader" if number == 1 else "follower",
            term=4,
            leader=host(1),
            commit=90,
            applied=90,
            first=1,
            last=90,
            members=members,
        )

    def topology(self) -> TopologyStatus:
        states = {1: "normal", 2: "normal", 3: self.state3}
        return TopologyStatus(
            version=VERSION,
            fence=VERSION,
            nodes=tuple((host(one), state) for one, state in states.items()),
            transition=self.transition,
            counts=tuple(NodeCounts(host=host(one), shards=2, tablets=128) for one in states),
        )

    def leases(self, number: int) -> LeadershipReport:
        held = [
            HeldLeaseReport(host=host(one), is_held=True, rtt_us=None, timeout_ms=1, renewed_ms_ago=None)
            for one in (1, 2)
        ]
        return LeadershipReport(
            host=host(number),
            address=self.at(number),
            state=LeaseState.ACTIVE,
            lease=None,
            left_ms=1,
            on_disk_ms=1,
            leads=number == 1,
            term=4,
            held=tuple(held) if number == 1 else (),
            voters=((host(1), host(2), host(3)),),
            lease_id="5f0c9a1e-0000",
        )

"""Combines the answers of nodes to one view of the cluster, for tables and JSON. Pure."""

import enum
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from ebla.client.leadership_view import lease_counts, leases_line
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import HostId
from ebla.model.records.jobs import PipelineState
from ebla.topology.states import JOINING_STATES
from ebla.topology.states import NodeState as TopologyState
from ebla.wire.group0_messages import Group0Report
from ebla.wire.verbs import ProcessState, ProcessStatus, StatusAnswer, TopologyStatus

SHARD_PREFIX = "shard-"
PIPELINE = "pipeline"
LEADER = "leader"
"""The role of the leader, in place of `voter`."""


class NodeStatus(enum.StrEnum):
    UP = "up"
    DOWN = "down"


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The result of probing a node. `trouble` is the reason if there is no answer."""

    name: str
    address: str
    host: HostId | None = None
    answer: StatusAnswer | None = None
    trouble: str = ""
    has_left: bool = False
    """By its own folder; the cluster lists no nodes that have left."""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pid: int | None
    state: str
    restarts: int
    last_exit: str
    version: int | None = None
    """The topology version that it has installed."""
    serving: bool = False
    trouble: str = ""
    load_bytes: int | None = None

    @property
    def is_shard(self) -> bool:
        return self.name.startswith(SHARD_PREFIX)

    @property
    def is_pipeline(self) -> bool:
        """The pipeline starts and stops with leadership, and serves no requests."""
        return self.name == PIPELINE


class RingView(msgspec.Struct, frozen=True, kw_only=True):
    """The topology as one node has it."""

    version: int
    fence: int
    state: str
    """The state of the node; empty: the topology does not have it yet."""
    normal: int
    """Number of nodes in the ring."""
    members: int
    transition: str
    waits_for: str


class Group0View(msgspec.Struct, frozen=True, kw_only=True):
    """A node's role in group 0, from its own answer. `lag` is from the leader."""

    role: str
    votes: bool
    leads: bool
    term: int
    commit: int
    applied: int
    lag: int | None


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node. If it was not probed itself, `state` is what the other nodes report."""

    name: str
    host: HostId | None
    address: str
    state: NodeStatus
    uptime_ms: int | None
    round_trip_us: int | None
    """Measured by the first other node that has one."""
    held_up_by: int
    """Number of other nodes that answered and consider it up."""
    asked_others: int
    processes: tuple[ProcessView, ...]
    trouble: str
    group0: Group0View | None = None
    ring: RingView | None = None
    warnings: tuple[str, ...] = ()
    excluded: str = ""
    """How it was excluded; empty: it is not."""
    is_incomplete: bool = False
    """It lacks rows that quorums rely on."""
    datacenter: str = ""
    rack: str = ""
    topology_state: str | None = None
    """By the newest topology among the answers; empty: that does not have it; None: no answer has a topology."""
    group0_role: str = ""
    """`leader`, `voter` or `learner`; empty: no answer knows it as a member."""
    tablets: int | None = None
    shards: int | None = None
    load_bytes: int | None = None
    """What its shards store; None: it did not answer, or no shard has reported yet."""

    @property
    def shards_serving(self) -> int:
        return sum(process.serving for process in self.processes if process.is_shard)

    @property
    def why_not_serving(self) -> str:
        """Why a node that answers does not serve rows; empty: it serves, or is excluded, which `ebla up` must not wait
        for."""
        if self.state is NodeStatus.DOWN or self.excluded or not self.processes:
            return ""
        if self.ring is None:
            return "it has not received the topology"
        if self.ring.waits_for:
            return self.ring.waits_for
        if self.ring.state != TopologyState.NORMAL:
            return "it is not in the ring yet"
        waiting = [_why_not_serving(process) for process in self.processes if not process.is_pipeline]
        return "; ".join(words for words in waiting if words)


def _why_not_serving(process: ProcessView) -> str:
    if process.state != ProcessState.RUNNING:
        return f"{process.name} is {process.state}"
    if process.trouble:
        return f"{process.name}: {process.trouble}"
    return f"{process.name} does not serve yet" if process.is_shard and not process.serving else ""


class PipelineView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the leader's pipeline."""

    state: str
    cause: str = ""
    master: str = ""
    version: str = ""
    user_interface: str = ""
    host: HostId | None = None
    pid: int = 0


class VotersView(msgspec.Struct, frozen=True, kw_only=True):
    """The voters of group 0, by the report of the highest term."""

    count: int
    up: int
    leader: HostId | None

    @property
    def has_majority(self) -> bool:
        return 2 * self.up > self.count


NOT_STARTED = PipelineView(state="not started")
NOT_RUNNING = PipelineView(
    state="not running",
    cause="the leader runs none and jobs wait: either it has just become leader, "
    "or its option pipeline.enabled is false",
)


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str | None
    cluster_name: str | None
    nodes: tuple[NodeView, ...]
    pipeline: PipelineView = NOT_STARTED
    leases: str = ""
    """Who leads, which leases it holds and what runs under them, in one line."""
    lease_counts: str = ""
    """How many leases of the voters the leader holds, as in `2 of 3`; empty: no leader is known."""
    voters: VotersView | None = None
    """None: no node that answers is in group 0."""
    topology_version: int | None = None
    """The newest among the answers."""
    transition: str = ""

    @property
    def excluded(self) -> tuple[NodeView, ...]:
        return tuple(node for node in self.nodes if node.excluded)

    @property
    def joining(self) -> tuple[NodeView, ...]:
        """Their joins take as long as their data takes."""
        return tuple(node for node in self.nodes if node.topology_state in JOINING_STATES)

    @property
    def all_up(self) -> bool:
        return not self.joining and self.members_up

    @property
    def members_up(self) -> bool:
        """All but those that join."""
        members = [node for node in self.nodes if node not in self.joining]
        return all(
            node.state is NodeStatus.UP
            and node.held_up_by == node.asked_others == len(self.nodes) - 1
            and all(process.state == ProcessState.RUNNING for process in node.processes if not process.is_pipeline)
            and node.group0 is not None
            and node.group0.applied > 0
            and not node.why_not_serving
            and node.ring is not None
            and node.ring.normal >= len(members)
            for node in members
        ) and any(node.group0 is not None and node.group0.leads for node in self.nodes)


def build_cluster_view(probes: Sequence[NodeProbe], pipeline: PipelineState | None = None) -> ClusterView:
    """The probed nodes, in order, then nodes that only the answers mention. `pipeline` is its state in group 0, which a
    former leader may have written."""
    answers = [node.answer for node in probes if node.answer is not None]
    addresses = [node.address for node in probes]
    only_mentioned = sorted({peer.address for answer in answers for peer in answer.peers} - set(addresses))
    all_nodes = [*probes, *(NodeProbe(name="", address=address) for address in only_mentioned)]
    facts = _ClusterFacts(answers)
    nodes = tuple(_node_view(node, answers, facts) for node in all_nodes)
    leader, topology = facts.leader, facts.topology
    leases = [answer.leases for answer in answers if answer.leases is not None]
    return ClusterView(
        cluster=str(answers[0].cluster) if answers else None,
        cluster_name=answers[0].cluster_name if answers else None,
        nodes=nodes,
        pipeline=pipeline_view(pipeline, leader, next((answer for answer in answers if answer.host == leader), None)),
        leases=leases_line(leases),
        lease_counts=lease_counts(leases),
        voters=facts.voters(nodes),
        topology_version=None if topology is None else topology.version,
        transition="" if topology is None else topology.transition,
    )


class _ClusterFacts:
    """What the answers say of the cluster as a whole: each fact by the one that is furthest ahead."""

    def __init__(self, answers: Sequence[StatusAnswer]) -> None:
        reports = [answer.group0 for answer in answers if answer.group0 is not None]
        topologies = [answer.topology for answer in answers if answer.topology is not None]
        self.report: Group0Report | None = max(reports, key=lambda one: (one.term, one.applied), default=None)
        # A candidate has a higher term than the leader that the others still follow.
        led = max((one for one in reports if one.leader is not None), key=lambda one: one.term, default=None)
        self.leader = None if led is None else led.leader
        self.topology: TopologyStatus | None = max(topologies, key=lambda one: one.version, default=None)

    def member(self, host: HostId | None) -> Member | None:
        members = () if self.report is None else self.report.members
        return next((one.member for one in members if one.member.host == host and one.member.present), None)

    def role(self, host: HostId | None) -> str:
        member = self.member(host)
        if member is None:
            return ""
        if member.role is not MemberRole.VOTER:
            return "learner"
        return LEADER if host == self.leader else "voter"

    def voters(self, nodes: Sequence[NodeView]) -> VotersView | None:
        if self.report is None:
            return None
        voters = [one.member.host for one in self.report.members if one.member.role is MemberRole.VOTER]
        up = [node.host for node in nodes if node.state is NodeStatus.UP]
        return VotersView(count=len(voters), up=sum(host in up for host in voters), leader=self.leader)

    def add_to(self, view: NodeView) -> NodeView:
        """What is known of the node although it may not answer itself."""
        member, topology = self.member(view.host), self.topology
        view = msgspec.structs.replace(
            view,
            datacenter="" if member is None else member.datacenter,
            rack="" if member is None else member.rack,
            group0_role=self.role(view.host),
        )
        if topology is None or view.host is None:
            return view
        counts = next((one for one in topology.counts if one.host == view.host), None)
        return msgspec.structs.replace(
            view,
            excluded=dict(topology.excluded).get(view.host, ""),
            is_incomplete=view.host in topology.incomplete,
            topology_state=dict(topology.nodes).get(view.host, ""),
            tablets=None if counts is None else counts.tablets,
            shards=None if counts is None else counts.shards,
        )


def pipeline_view(
    state: PipelineState | None, leader: HostId | None, leader_status: StatusAnswer | None = None
) -> PipelineView:
    """`leader_status` is the answer of the leader, if there is one: the stored state may outlive its pipeline."""
    if leader_status is not None:
        pid = next((process.pid for process in leader_status.processes if process.name == PIPELINE), None)
        if pid is None:
            return NOT_RUNNING
        if state is not None and state.pid != pid:
            return NOT_STARTED
    if state is None or (leader is not None and state.host != leader):
        return NOT_STARTED
    return msgspec.convert(state, PipelineView, from_attributes=True)


def _node_view(node: NodeProbe, answers: Sequence[StatusAnswer], facts: _ClusterFacts) -> NodeView:
    others = [other for other in answers if other.address != node.address]
    reports = [peer for other in others for peer in other.peers if peer.address == node.address]
    held_up_by = sum(peer.up for peer in reports)
    view = NodeView(
        name=node.name,
        host=node.host or next((peer.host for peer in reports if peer.host is not None), None),
        address=node.address,
        # A node without a name was only mentioned by others.
        state=NodeStatus.UP if held_up_by and not node.name else NodeStatus.DOWN,
        uptime_ms=None,
        round_trip_us=next(
            (peer.round_trip_us for peer in reports if peer.up and peer.round_trip_us is not None), None
        ),
        held_up_by=held_up_by,
        asked_others=len(others),
        processes=(),
        trouble=node.trouble,
        warnings=_clock_warning(clocks_away(answers).get(node.address, 0)),
    )
    answer = node.answer
    if answer is None:
        known = facts.add_to(view)
        return msgspec.structs.replace(known, topology_state=TopologyState.LEFT) if node.has_left else known
    loads = [one.load_bytes for one in answer.processes if one.load_bytes is not None]
    return msgspec.structs.replace(
        facts.add_to(msgspec.structs.replace(view, host=answer.host)),
        state=NodeStatus.UP,
        uptime_ms=answer.uptime_ms,
        processes=tuple(_process_view(process) for process in answer.processes),
        trouble=node.trouble or answer.waits_for,
        group0=_group0_view(answer, answers),
        ring=_ring_view(answer),
        warnings=(*view.warnings, *answer.warnings),
        load_bytes=sum(loads) if loads else None,
    )


def _clock_warning(away_ms: int) -> tuple[str, ...]:
    if not away_ms:
        return ()
    direction = "ahead of" if away_ms > 0 else "behind"
    return (f"its clock is {abs(away_ms) / 1000:.1f} s {direction} the clocks of the others",)


def clocks_away(answers: Sequence[StatusAnswer]) -> Mapping[str, int]:
    """Nodes by address whose clocks are not where the others' are, as the first node sees it that reports a skewed
    clock. That one may be its own: what counts is the distance to the clock in the middle."""
    for answer in answers:
        skewed = [abs(peer.clock_offset_ms or 0) for peer in answer.peers if peer.is_clock_skewed]
        if not skewed:
            continue
        known = {peer.address: peer.clock_offset_ms for peer in answer.peers if peer.clock_offset_ms is not None}
        clocks = {answer.address: 0, **known}
        middle = statistics.median_low(clocks.values())
        # Two clocks whose distance is reported are never both close to the middle.
        return {address: clock - middle for address, clock in clocks.items() if abs(clock - middle) * 2 >= min(skewed)}
    return {}


def _ring_view(answer: StatusAnswer) -> RingView | None:
    topology = answer.topology
    if topology is None:
        return None
    states = dict(topology.nodes)
    return RingView(
        version=topology.version,
        fence=topology.fence,
        state=states.get(answer.host, ""),
        normal=sum(state == TopologyState.NORMAL for state in states.values()),
        members=len(states),
        transition=topology.transition,
        waits_for=topology.waits_for,
    )


def _process_view(process: ProcessStatus) -> ProcessView:
    view = msgspec.convert(process, ProcessView, from_attributes=True)
    return view if process.pid else msgspec.structs.replace(view, pid=None)


def _group0_view(answer: StatusAnswer, answers: Sequence[StatusAnswer]) -> Group0View | None:
    own = answer.group0
    if own is None:
        return None
    member = next((each.member for each in own.members if each.member.host == answer.host), None)
    reports = [other.group0 for other in answers if other.group0 is not None]
    lags = [each.lag for report in reports for each in report.members if each.member.host == answer.host]
    return Group0View(
        role=own.role,
        votes=member is not None and member.role is MemberRole.VOTER,
        leads=own.leader == answer.host,
        term=own.term,
        commit=own.commit,
        applied=own.applied,
        lag=next((lag for lag in lags if lag is not None), None),
    )

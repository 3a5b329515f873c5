"""Every verb of the wire. A number is used once and never again; `tests/unit/wire/verbs.golden` pins them.

A `Verb` is asked and answered; a `Notice` is sent and forgotten. Requests and answers are array-like structs whose
fields are only appended, with defaults.
"""

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ebla.group0 import join_messages as joins
from ebla.leadership.messages import AbolishLease, LeaseAnswer, LeaseAvailable, LeaseRequest, OrderRequest
from ebla.model.identity import ClusterId, HostId, TopologyVersion
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.wire import failover_messages as failover
from ebla.wire import feed_messages as feed
from ebla.wire import group0_messages as group0
from ebla.wire import leadership_messages as leadership
from ebla.wire import operation_messages as operations
from ebla.wire import row_messages as rows
from ebla.wire import settings_messages as settings
from ebla.wire import table_calls as tables
from ebla.wire import topology_messages as topology
from ebla.wire import transfer_messages as transfers
from ebla.wire.fault_messages import FaultAnswer, FaultRequest
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import Group0Report
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest
from ebla.wire.schema_messages import SchemaAnswer, SchemaRequest

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[Q, A]):
    number: int
    name: str
    lane: Lane
    request: type[Q]
    answer: type[A]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Generic[Q]):
    number: int
    name: str
    lane: Lane
    message: type[Q]


class EmptyAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a verb without a result."""


class IdentityRequest(msgspec.Struct, frozen=True, array_like=True):
    """Who is there?"""


class IdentityAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    cluster: ClusterId | None
    cluster_name: str
    process: str
    pid: int


class HeartbeatRequest(msgspec.Struct, frozen=True, array_like=True):
    """`incarnation` grows with each start of the sender, so that a restart is seen even between two heartbeats."""

    serial: int
    incarnation: int = 0


class HeartbeatAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    serial: int
    incarnation: int = 0
    wall_us: int = 0
    """The clock of the one that answers; 0: an earlier release, which does not tell."""
    excluded_in: TopologyVersion = TopologyVersion(0)
    """The version of the topology, as the one that answers has it, in which the sender is excluded; 0: it is not."""


class StatusRequest(msgspec.Struct, frozen=True, array_like=True):
    """The view of this node, from its own state alone."""


class ProcessState(enum.StrEnum):
    """The state of a process of a node, as its control sees it."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLED = "killed"
    GONE = "gone"


class ProcessStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One process of a node. `pid` is 0 while there is none; `state` is a `ProcessState`, or a value of a newer
    peer."""

    name: str
    pid: int
    started_wall_us: int
    restarts: int = 0
    state: str = ""
    last_exit: str = ""
    version: TopologyVersion | None = None
    """The topology version that it last reported as installed; None: none yet, or not part of barriers."""
    serving: bool = False
    """As in its last heartbeat."""
    trouble: str = ""
    """Why it cannot install a later version."""
    load_bytes: int | None = None
    """Of a shard, as in its last heartbeat; None: another process, or not known yet."""


class NodeCounts(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    shards: int
    tablets: int
    """Tablets with a current replica on the node."""


class TopologyStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The topology as this node's control knows it."""

    version: TopologyVersion
    fence: TopologyVersion
    nodes: tuple[tuple[HostId, str], ...] = ()
    """Every node that has not left, with its state, by host id."""
    transition: str = ""
    waits_for: str = ""
    """Why this node is not in the ring yet."""
    excluded: tuple[tuple[HostId, str], ...] = ()
    """The excluded hosts, each with how it was excluded."""
    counts: tuple[NodeCounts, ...] = ()
    """Of the same nodes; empty: the answer of an earlier release."""
    incomplete: tuple[HostId, ...] = ()
    """The hosts that lack rows that quorums rely on."""


class PeerStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One node as another sees it. If it was never heard from, `host` and `heard_ms_ago` are None."""

    host: HostId | None
    address: str
    up: bool
    heard_ms_ago: int | None = None
    round_trip_us: int | None = None
    since_ms_ago: int = 0
    clock_offset_ms: int | None = None
    """Its clock minus that of the node that answers."""
    is_clock_skewed: bool = False
    """The offset has been too large for several heartbeats."""


class StatusAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    cluster: ClusterId | None
    cluster_name: str
    address: str
    started_wall_us: int
    processes: tuple[ProcessStatus, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    uptime_ms: int = 0
    release: str = ""
    group0: Group0Report | None = None
    """None until the node's Raft peer runs."""
    waits_for: str = ""
    """What the node waits for while it is in no cluster."""
    topology: TopologyStatus | None = None
    """None until group 0 has one."""
    warnings: tuple[str, ...] = ()
    """What an operator should change although the node serves, one sentence each."""
    leases: leadership.LeadershipReport | None = None
    """Without the activities that ended."""


class StopRequest(msgspec.Struct, frozen=True, array_like=True):
    """Requests an orderly stop; the answer is sent before."""

    reason: str


class ChildBeatRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The heartbeat of a child of a node to its control. The pid distinguishes it from a predecessor."""

    name: str
    pid: int
    serving: bool
    warning: str = ""
    """What an operator should know of it although it serves; children with the same trouble say the same."""
    load_bytes: int | None = None
    """What a shard stores: its layers and its commit log."""


class ChildBeatAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The answer of control; a child that misses it for too long stops serving."""

    serving: bool
    clock_ahead_ms: int = 0
    """How far the node's clock is ahead of the clocks of more than half of the members."""
    permit: int = 0
    """The number of the permit under which the pipeline may act."""
    permit_ms: int = 0
    """For how long, from the sending of the heartbeat on; 0: it may not."""
    faults: tuple[str, ...] = ()
    """The fault points of the shards that are set: a shard that reaches one calls control."""


class CleanupRequest(msgspec.Struct, frozen=True, array_like=True):
    """Drops from the files of a shard what the node does not hold of tables on vnodes."""


class CleanupAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the shard's tables on vnodes take on disk."""

    before_bytes: int
    after_bytes: int


class PermitWatchRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The pipeline waits here for the withdrawal of its permit, and confirms those that were withdrawn before."""

    pid: int
    stopped: int
    """It has stopped to act under permits up to this number, and never acts under them again."""
    hold_ms: int
    """How long control may hold the answer while there is nothing to withdraw."""


class PermitWatchAnswer(msgspec.Struct, frozen=True, array_like=True):
    withdrawn: int
    """The highest number of a permit that was withdrawn; 0: none was."""


class AuthorityRequest(msgspec.Struct, frozen=True, array_like=True):
    """The certificate of the cluster's authority: public, and trusted only if the join token names it."""


class AuthorityAnswer(msgspec.Struct, frozen=True, array_like=True):
    certificate_pem: bytes


class HandOverRequest(msgspec.Struct, frozen=True, array_like=True):
    token: str


class HandOverAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    cluster: ClusterId
    cluster_name: str
    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return f"HandOverAnswer(cluster={self.cluster}, key_pem=<{len(self.key_pem)} bytes>)"


def _control_verb(number: int, name: str, request: type[Q], answer: type[A]) -> Verb[Q, A]:
    return Verb(number=number, name=name, lane=Lane.CONTROL, request=request, answer=answer)


def _data_verb(number: int, name: str, request: type[Q], answer: type[A]) -> Verb[Q, A]:
    return Verb(number=number, name=name, lane=Lane.DATA, request=request, answer=answer)


IDENTITY = _control_verb(1, "identity", IdentityRequest, IdentityAnswer)
HEARTBEAT = _control_verb(2, "heartbeat", HeartbeatRequest, HeartbeatAnswer)
STATUS = _control_verb(3, "status", StatusRequest, StatusAnswer)
STOP = _control_verb(4, "stop", StopRequest, EmptyAnswer)
AUTHORITY = Verb(number=5, name="authority", lane=Lane.JOIN, request=AuthorityRequest, answer=AuthorityAnswer)
HAND_OVER = Verb(number=6, name="hand_over", lane=Lane.JOIN, request=HandOverRequest, answer=HandOverAnswer)
CHILD_BEAT = _control_verb(7, "child_beat", ChildBeatRequest, ChildBeatAnswer)
RAFT = Notice(number=8, name="raft", lane=Lane.RAFT, message=group0.RaftMessages)
SNAPSHOT_CHUNK = _data_verb(9, "snapshot_chunk", group0.SnapshotChunk, group0.SnapshotChunkAnswer)
GROUP0_PROPOSE = _control_verb(10, "group0_propose", group0.ProposeRequest, EmptyAnswer)
GROUP0_DISCOVER = _control_verb(11, "group0_discover", group0.DiscoverRequest, group0.DiscoverAnswer)
# 12 added a new node to group 0 at once. Numbers are not used again.
GROUP0_MEMBERSHIP = _control_verb(13, "group0_membership", group0.MembershipRequest, group0.MembershipAnswer)
GROUP0_READ = _control_verb(14, "group0_read", group0.Group0ReadRequest, group0.Group0ReadAnswer)
GROUP0_EXECUTE = _control_verb(15, "group0_execute", group0.ExecuteRequest, group0.ExecuteAnswer)
GROUP0_WATCH = _control_verb(16, "group0_watch", group0.WatchRequest, group0.WatchAnswer)
GROUP0_LOCK = _control_verb(17, "group0_lock", group0.LockRequest, group0.LockAnswer)
GROUP0_MEMBERS = _control_verb(18, "group0_members", group0.MembersRequest, Group0Report)
# 19 changed a member without its keys. Numbers are not used again.
GROUP0_TRANSFER = _control_verb(20, "group0_transfer", group0.TransferLeadershipRequest, EmptyAnswer)
FEED = _control_verb(21, "feed", feed.FeedRequest, feed.FeedAnswer)
CHILD_REPORT = _control_verb(22, "child_report", feed.ChildReport, EmptyAnswer)
READ_BARRIER = _control_verb(23, "read_barrier", feed.ReadBarrierRequest, feed.ReadBarrierAnswer)
NODE_BARRIER = _control_verb(24, "node_barrier", feed.NodeBarrierRequest, feed.NodeBarrierAnswer)
SCHEMA = _control_verb(25, "schema", SchemaRequest, SchemaAnswer)
WRITE_ROWS = _data_verb(26, "write_rows", rows.WriteRowsRequest, rows.WriteRowsAnswer)
READ_ROWS = _data_verb(27, "read_rows", rows.ReadRowsRequest, rows.ReadRowsAnswer)
STREAM_ROWS = _data_verb(28, "stream_rows", rows.StreamRowsRequest, EmptyAnswer)
# 29 and 30 were verbs of a client protocol for rows. Numbers are not used again.
COMPACT = _data_verb(31, "compact", CompactionJob, CompactionResult)
METRICS = _control_verb(32, "metrics", MetricsRequest, MetricsAnswer)
OPEN_SESSION = _control_verb(33, "open_session", transfers.OpenSessionRequest, transfers.OpenSessionAnswer)
CLOSE_SESSION = _control_verb(34, "close_session", transfers.CloseSessionRequest, transfers.CloseSessionAnswer)
CHECKPOINT = _data_verb(35, "checkpoint", transfers.CheckpointRequest, transfers.CheckpointAnswer)
FIND_TARGET = _data_verb(36, "find_target", transfers.FindTargetRequest, transfers.FindTargetAnswer)
ADOPT = _data_verb(37, "adopt", transfers.AdoptRequest, transfers.AdoptAnswer)
TAKE_CHECKPOINT = _data_verb(38, "take_checkpoint", transfers.TakeCheckpointRequest, transfers.TakeCheckpointAnswer)
OPEN_STAGING = _data_verb(39, "open_staging", transfers.OpenStagingRequest, transfers.OpenStagingAnswer)
SEAL = _data_verb(40, "seal", transfers.SealRequest, transfers.SealAnswer)
RELEASE = _data_verb(41, "release", transfers.ReleaseRequest, EmptyAnswer)
BULK_STATUS = _data_verb(42, "bulk_status", transfers.BulkStatusRequest, transfers.BulkStatusAnswer)
OPEN_TABLE_READ = _data_verb(43, "open_table_read", tables.OpenTableReadRequest, tables.OpenTableReadAnswer)
CLOSE_TABLE_READ = _data_verb(44, "close_table_read", tables.CloseTableReadRequest, EmptyAnswer)
FAULT = _control_verb(45, "fault", FaultRequest, FaultAnswer)
# 46 to 49 belong to other subjects.
SETTINGS_LIST = _control_verb(50, "settings_list", settings.SettingsListRequest, settings.SettingsListAnswer)
SETTINGS_GET = _control_verb(51, "settings_get", settings.SettingsGetRequest, settings.SettingView)
SETTINGS_WRITE = _control_verb(52, "settings_write", settings.SettingsWriteRequest, settings.SettingsWriteAnswer)
SETTINGS_WATCH = _control_verb(53, "settings_watch", settings.SettingsWatchRequest, settings.SettingsWatchAnswer)
SETTINGS_HISTORY = _control_verb(
    54, "settings_history", settings.SettingsHistoryRequest, settings.SettingsHistoryAnswer
)
SETTINGS_PUSH = _data_verb(55, "settings_push", settings.SettingsPushRequest, EmptyAnswer)
SETTINGS_PULL = _data_verb(56, "settings_pull", settings.SettingsPullRequest, settings.SettingsPullAnswer)
# 57 and 58 were verbs of the purge that carried no order. A node answers them as unknown, and the purge of a leader
# with an older release waits.
SETTINGS_PURGE = _control_verb(59, "settings_purge", settings.SettingsPurgeRequest, settings.SettingsPurgeAnswer)
SETTINGS_PURGE_STATUS = _control_verb(
    60, "settings_purge_status", settings.SettingsPurgeStatusRequest, settings.SettingsPurgeStatusAnswer
)
ACQUIRE_LEASE = Verb(number=61, name="acquire_lease", lane=Lane.LEASE, request=LeaseRequest, answer=LeaseAnswer)
ABOLISH_LEASE = Notice(number=62, name="abolish_lease", lane=Lane.LEASE, message=AbolishLease)
LEASE_AVAILABLE = Notice(number=63, name="lease_available", lane=Lane.LEASE, message=LeaseAvailable)
LEADERSHIP = _control_verb(64, "leadership", leadership.LeadershipRequest, leadership.LeadershipReport)
CLUSTER_LEADERSHIP = _control_verb(
    65, "cluster_leadership", leadership.ClusterLeadershipRequest, leadership.ClusterLeadershipAnswer
)
OPERATE = _control_verb(66, "operate", operations.OperateRequest, operations.OperateAnswer)
OPERATIONS = _control_verb(67, "operations", operations.OperationsRequest, operations.OperationsAnswer)
PERMIT_WATCH = _control_verb(68, "permit_watch", PermitWatchRequest, PermitWatchAnswer)
OPINIONS = _control_verb(70, "opinions", failover.OpinionsRequest, failover.OpinionsAnswer)
FAILOVER_CHECK = _control_verb(71, "failover_check", failover.FailoverCheckRequest, failover.FailoverCheckAnswer)
FAILOVER_STATUS = _control_verb(72, "failover_status", failover.FailoverStatusRequest, failover.FailoverStatusAnswer)
PREPARE_PURGE = _data_verb(73, "prepare_purge", OrderRequest[settings.PreparePurgeRequest], settings.PreparePurgeAnswer)
PUSH_TOMBSTONES = _data_verb(74, "push_tombstones", OrderRequest[settings.PushTombstonesRequest], EmptyAnswer)
JOIN_NODE_QUERY = _control_verb(75, "join_node_query", joins.JoinNodeQuery, joins.JoinNodeQueryAnswer)
JOIN_NODE_REQUEST = _control_verb(76, "join_node_request", joins.JoinNodeRequest, joins.JoinNodeWait)
JOIN_NODE_RESPONSE = _control_verb(77, "join_node_response", joins.JoinNodeResponse, joins.JoinNodeResponseAnswer)
TOPOLOGY_REPORT = _control_verb(78, "topology_report", topology.TopologyReportRequest, topology.TopologyReport)
ABORT_REQUEST = _control_verb(79, "abort_request", topology.AbortTopologyRequest, topology.AbortTopologyAnswer)
STREAM_WATCH = _control_verb(80, "stream_watch", topology.StreamWatchRequest, topology.StreamWatchAnswer)
STOP_NODE = _control_verb(81, "stop_node", OrderRequest[topology.StopNodeRequest], EmptyAnswer)
SUBMIT_REQUEST = _control_verb(82, "submit_request", topology.SubmitTopologyRequest, topology.SubmitTopologyAnswer)
CLEANUP = _data_verb(90, "cleanup", CleanupRequest, CleanupAnswer)

"""Every verb of the wire. A number is given once and never again; `tests/unit/wire/verbs.golden` pins them.

A `Verb` is asked and answered; a `Notice` is sent and forgotten. Requests and answers are array-like structs whose
fields are only appended, with defaults.
"""

import enum
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from ebla.model.identity import ClusterId, HostId, TopologyVersion
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.wire.feed_messages import (
    ChildReport,
    FeedAnswer,
    FeedRequest,
    NodeBarrierAnswer,
    NodeBarrierRequest,
    ReadBarrierAnswer,
    ReadBarrierRequest,
)
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import (
    ChangeMemberRequest,
    DiscoverAnswer,
    DiscoverRequest,
    ExecuteAnswer,
    ExecuteRequest,
    Group0ReadAnswer,
    Group0ReadRequest,
    Group0Report,
    JoinAnswer,
    JoinRequest,
    LockAnswer,
    LockRequest,
    MembershipAnswer,
    MembershipRequest,
    MembersRequest,
    ProposeRequest,
    RaftMessages,
    SnapshotChunk,
    SnapshotChunkAnswer,
    TransferLeadershipRequest,
    WatchAnswer,
    WatchRequest,
)
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    RouteReadAnswer,
    RouteReadRequest,
    RouteWriteRequest,
    StreamRowsRequest,
    WriteRowsAnswer,
    WriteRowsRequest,
)
from ebla.wire.schema_messages import SchemaAnswer, SchemaRequest
from ebla.wire.table_calls import (
    CloseTableReadRequest,
    OpenTableReadAnswer,
    OpenTableReadRequest,
)
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    AdoptRequest,
    BulkStatusAnswer,
    BulkStatusRequest,
    CheckpointAnswer,
    CheckpointRequest,
    CloseSessionAnswer,
    CloseSessionRequest,
    FindTargetAnswer,
    FindTargetRequest,
    OpenSessionAnswer,
    OpenSessionRequest,
    OpenStagingAnswer,
    OpenStagingRequest,
    ReleaseRequest,
    SealAnswer,
    SealRequest,
    TakeCheckpointAnswer,
    TakeCheckpointRequest,
)

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Verb(Generic[Q, A]):
    number: int
    name: str
    lane: Lane
    request: type[Q]
    answer: type[A]


@dataclass(frozen=True, slots=True)
class Notice(Generic[Q]):
    number: int
    name: str
    lane: Lane
    message: type[Q]


class EmptyAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a verb that has nothing to tell."""


class IdentityRequest(msgspec.Struct, frozen=True, array_like=True):
    """Who is there?"""


class IdentityAnswer(msgspec.Struct, frozen=True, array_like=True):
    host: HostId
    cluster: ClusterId | None
    cluster_name: str
    process: str
    pid: int


class HeartbeatRequest(msgspec.Struct, frozen=True, array_like=True):
    """`incarnation` grows with each start of the sender, so that a restart shows even between two beats."""

    serial: int
    incarnation: int = 0


class HeartbeatAnswer(msgspec.Struct, frozen=True, array_like=True):
    serial: int
    incarnation: int = 0


class StatusRequest(msgspec.Struct, frozen=True, array_like=True):
    """What does this node see, from its own state alone?"""


class ProcessState(enum.StrEnum):
    """How far a process of a node is, as its control sees it."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLED = "killed"
    GONE = "gone"


class ProcessStatus(msgspec.Struct, frozen=True, array_like=True):
    """One process of a node. `pid` is 0 while there is none; `state` is a `ProcessState`, or a newer peer's word."""

    name: str
    pid: int
    started_wall_us: int
    restarts: int = 0
    state: str = ""
    last_exit: str = ""
    version: TopologyVersion | None = None
    """Of the topology, as it last reported to have installed it; None: nothing yet, or not part of a barrier."""
    serving: bool = False
    """As it said of itself in its last heartbeat."""
    trouble: str = ""
    """Why it does not get on to a later version."""


class TopologyStatus(msgspec.Struct, frozen=True, array_like=True):
    """The topology as this node's control has it."""

    version: TopologyVersion
    fence: TopologyVersion
    nodes: tuple[tuple[HostId, str], ...] = ()
    """Every node that has not left, with its state, by host id."""
    transition: str = ""
    waits_for: str = ""
    """Why this node is not in the ring yet."""


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    """One node as another sees it. Never heard: `host` and `heard_ms_ago` are None."""

    host: HostId | None
    address: str
    up: bool
    heard_ms_ago: int | None = None
    round_trip_us: int | None = None
    since_ms_ago: int = 0


class StatusAnswer(msgspec.Struct, frozen=True, array_like=True):
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
    """While the node is in no cluster: what for."""
    topology: TopologyStatus | None = None
    """None until group 0 has told of one."""


class StopRequest(msgspec.Struct, frozen=True, array_like=True):
    """Stop in order; the answer comes before the stop."""

    reason: str


class ChildBeatRequest(msgspec.Struct, frozen=True, array_like=True):
    """A child of a node tells its control that it lives. The pid tells it from a predecessor."""

    name: str
    pid: int
    serving: bool


class ChildBeatAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What control says back; a child that misses it for too long stops serving."""

    serving: bool


class AuthorityRequest(msgspec.Struct, frozen=True, array_like=True):
    """The certificate of the cluster's authority: public, and believed only if the join token names it."""


class AuthorityAnswer(msgspec.Struct, frozen=True, array_like=True):
    certificate_pem: bytes


class HandOverRequest(msgspec.Struct, frozen=True, array_like=True):
    token: str


class HandOverAnswer(msgspec.Struct, frozen=True, array_like=True):
    cluster: ClusterId
    cluster_name: str
    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return f"HandOverAnswer(cluster={self.cluster}, key_pem=<{len(self.key_pem)} bytes>)"


IDENTITY = Verb(1, "identity", Lane.CONTROL, IdentityRequest, IdentityAnswer)
HEARTBEAT = Verb(2, "heartbeat", Lane.CONTROL, HeartbeatRequest, HeartbeatAnswer)
STATUS = Verb(3, "status", Lane.CONTROL, StatusRequest, StatusAnswer)
STOP = Verb(4, "stop", Lane.CONTROL, StopRequest, EmptyAnswer)
AUTHORITY = Verb(5, "authority", Lane.JOIN, AuthorityRequest, AuthorityAnswer)
HAND_OVER = Verb(6, "hand_over", Lane.JOIN, HandOverRequest, HandOverAnswer)
CHILD_BEAT = Verb(7, "child_beat", Lane.CONTROL, ChildBeatRequest, ChildBeatAnswer)
RAFT = Notice(8, "raft", Lane.RAFT, RaftMessages)
SNAPSHOT_CHUNK = Verb(9, "snapshot_chunk", Lane.DATA, SnapshotChunk, SnapshotChunkAnswer)
GROUP0_PROPOSE = Verb(10, "group0_propose", Lane.CONTROL, ProposeRequest, EmptyAnswer)
GROUP0_DISCOVER = Verb(11, "group0_discover", Lane.CONTROL, DiscoverRequest, DiscoverAnswer)
GROUP0_JOIN = Verb(12, "group0_join", Lane.CONTROL, JoinRequest, JoinAnswer)
GROUP0_MEMBERSHIP = Verb(13, "group0_membership", Lane.CONTROL, MembershipRequest, MembershipAnswer)
GROUP0_READ = Verb(14, "group0_read", Lane.CONTROL, Group0ReadRequest, Group0ReadAnswer)
GROUP0_EXECUTE = Verb(15, "group0_execute", Lane.CONTROL, ExecuteRequest, ExecuteAnswer)
GROUP0_WATCH = Verb(16, "group0_watch", Lane.CONTROL, WatchRequest, WatchAnswer)
GROUP0_LOCK = Verb(17, "group0_lock", Lane.CONTROL, LockRequest, LockAnswer)
GROUP0_MEMBERS = Verb(18, "group0_members", Lane.CONTROL, MembersRequest, Group0Report)
GROUP0_CHANGE_MEMBER = Verb(19, "group0_change_member", Lane.CONTROL, ChangeMemberRequest, ExecuteAnswer)
GROUP0_TRANSFER = Verb(20, "group0_transfer", Lane.CONTROL, TransferLeadershipRequest, EmptyAnswer)
FEED = Verb(21, "feed", Lane.CONTROL, FeedRequest, FeedAnswer)
CHILD_REPORT = Verb(22, "child_report", Lane.CONTROL, ChildReport, EmptyAnswer)
READ_BARRIER = Verb(23, "read_barrier", Lane.CONTROL, ReadBarrierRequest, ReadBarrierAnswer)
NODE_BARRIER = Verb(24, "node_barrier", Lane.CONTROL, NodeBarrierRequest, NodeBarrierAnswer)
SCHEMA = Verb(25, "schema", Lane.CONTROL, SchemaRequest, SchemaAnswer)
WRITE_ROWS = Verb(26, "write_rows", Lane.DATA, WriteRowsRequest, WriteRowsAnswer)
READ_ROWS = Verb(27, "read_rows", Lane.DATA, ReadRowsRequest, ReadRowsAnswer)
STREAM_ROWS = Verb(28, "stream_rows", Lane.DATA, StreamRowsRequest, EmptyAnswer)
ROUTE_WRITE = Verb(29, "route_write", Lane.DATA, RouteWriteRequest, EmptyAnswer)
ROUTE_READ = Verb(30, "route_read", Lane.DATA, RouteReadRequest, RouteReadAnswer)
COMPACT = Verb(31, "fold", Lane.DATA, CompactionJob, CompactionResult)
METRICS = Verb(32, "metrics", Lane.CONTROL, MetricsRequest, MetricsAnswer)
OPEN_SESSION = Verb(33, "open_session", Lane.CONTROL, OpenSessionRequest, OpenSessionAnswer)
CLOSE_SESSION = Verb(34, "close_session", Lane.CONTROL, CloseSessionRequest, CloseSessionAnswer)
CHECKPOINT = Verb(35, "checkpoint", Lane.DATA, CheckpointRequest, CheckpointAnswer)
FIND_TARGET = Verb(36, "find_target", Lane.DATA, FindTargetRequest, FindTargetAnswer)
ADOPT = Verb(37, "adopt", Lane.DATA, AdoptRequest, AdoptAnswer)
TAKE_CHECKPOINT = Verb(38, "take_checkpoint", Lane.DATA, TakeCheckpointRequest, TakeCheckpointAnswer)
OPEN_STAGING = Verb(39, "open_staging", Lane.DATA, OpenStagingRequest, OpenStagingAnswer)
SEAL = Verb(40, "seal", Lane.DATA, SealRequest, SealAnswer)
RELEASE = Verb(41, "release", Lane.DATA, ReleaseRequest, EmptyAnswer)
BULK_STATUS = Verb(42, "bulk_status", Lane.DATA, BulkStatusRequest, BulkStatusAnswer)
OPEN_TABLE_READ = Verb(43, "open_table_read", Lane.DATA, OpenTableReadRequest, OpenTableReadAnswer)
CLOSE_TABLE_READ = Verb(44, "close_table_read", Lane.DATA, CloseTableReadRequest, EmptyAnswer)

VERBS: tuple[Verb[Any, Any] | Notice[Any], ...] = (
    IDENTITY,
    HEARTBEAT,
    STATUS,
    STOP,
    AUTHORITY,
    HAND_OVER,
    CHILD_BEAT,
    RAFT,
    SNAPSHOT_CHUNK,
    GROUP0_PROPOSE,
    GROUP0_DISCOVER,
    GROUP0_JOIN,
    GROUP0_MEMBERSHIP,
    GROUP0_READ,
    GROUP0_EXECUTE,
    GROUP0_WATCH,
    GROUP0_LOCK,
    GROUP0_MEMBERS,
    GROUP0_CHANGE_MEMBER,
    GROUP0_TRANSFER,
    FEED,
    CHILD_REPORT,
    READ_BARRIER,
    NODE_BARRIER,
    SCHEMA,
    WRITE_ROWS,
    READ_ROWS,
    STREAM_ROWS,
    ROUTE_WRITE,
    ROUTE_READ,
    COMPACT,
    METRICS,
    OPEN_SESSION,
    CLOSE_SESSION,
    CHECKPOINT,
    FIND_TARGET,
    ADOPT,
    TAKE_CHECKPOINT,
    OPEN_STAGING,
    SEAL,
    RELEASE,
    BULK_STATUS,
    OPEN_TABLE_READ,
    CLOSE_TABLE_READ,
)

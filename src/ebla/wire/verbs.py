"""Every verb of the wire. A number is used once and never again; `tests/unit/wire/verbs.golden` pins them.

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


class HeartbeatAnswer(msgspec.Struct, frozen=True, array_like=True):
    serial: int
    incarnation: int = 0


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


class TopologyStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The topology as this node's control knows it."""

    version: TopologyVersion
    fence: TopologyVersion
    nodes: tuple[tuple[HostId, str], ...] = ()
    """Every node that has not left, with its state, by host id."""
    transition: str = ""
    waits_for: str = ""
    """Why this node is not in the ring yet."""


class PeerStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One node as another sees it. If it was never heard from, `host` and `heard_ms_ago` are None."""

    host: HostId | None
    address: str
    up: bool
    heard_ms_ago: int | None = None
    round_trip_us: int | None = None
    since_ms_ago: int = 0


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


class StopRequest(msgspec.Struct, frozen=True, array_like=True):
    """Requests an orderly stop; the answer is sent before."""

    reason: str


class ChildBeatRequest(msgspec.Struct, frozen=True, array_like=True):
    """The heartbeat of a child of a node to its control. The pid distinguishes it from a predecessor."""

    name: str
    pid: int
    serving: bool


class ChildBeatAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of control; a child that misses it for too long stops serving."""

    serving: bool


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


IDENTITY = Verb(number=1, name="identity", lane=Lane.CONTROL, request=IdentityRequest, answer=IdentityAnswer)
HEARTBEAT = Verb(number=2, name="heartbeat", lane=Lane.CONTROL, request=HeartbeatRequest, answer=HeartbeatAnswer)
STATUS = Verb(number=3, name="status", lane=Lane.CONTROL, request=StatusRequest, answer=StatusAnswer)
STOP = Verb(number=4, name="stop", lane=Lane.CONTROL, request=StopRequest, answer=EmptyAnswer)
AUTHORITY = Verb(number=5, name="authority", lane=Lane.JOIN, request=AuthorityRequest, answer=AuthorityAnswer)
HAND_OVER = Verb(number=6, name="hand_over", lane=Lane.JOIN, request=HandOverRequest, answer=HandOverAnswer)
CHILD_BEAT = Verb(number=7, name="child_beat", lane=Lane.CONTROL, request=ChildBeatRequest, answer=ChildBeatAnswer)
RAFT = Notice(number=8, name="raft", lane=Lane.RAFT, message=RaftMessages)
SNAPSHOT_CHUNK = Verb(
    number=9, name="snapshot_chunk", lane=Lane.DATA, request=SnapshotChunk, answer=SnapshotChunkAnswer
)
GROUP0_PROPOSE = Verb(number=10, name="group0_propose", lane=Lane.CONTROL, request=ProposeRequest, answer=EmptyAnswer)
GROUP0_DISCOVER = Verb(
    number=11, name="group0_discover", lane=Lane.CONTROL, request=DiscoverRequest, answer=DiscoverAnswer
)
GROUP0_JOIN = Verb(number=12, name="group0_join", lane=Lane.CONTROL, request=JoinRequest, answer=JoinAnswer)
GROUP0_MEMBERSHIP = Verb(
    number=13, name="group0_membership", lane=Lane.CONTROL, request=MembershipRequest, answer=MembershipAnswer
)
GROUP0_READ = Verb(number=14, name="group0_read", lane=Lane.CONTROL, request=Group0ReadRequest, answer=Group0ReadAnswer)
GROUP0_EXECUTE = Verb(number=15, name="group0_execute", lane=Lane.CONTROL, request=ExecuteRequest, answer=ExecuteAnswer)
GROUP0_WATCH = Verb(number=16, name="group0_watch", lane=Lane.CONTROL, request=WatchRequest, answer=WatchAnswer)
GROUP0_LOCK = Verb(number=17, name="group0_lock", lane=Lane.CONTROL, request=LockRequest, answer=LockAnswer)
GROUP0_MEMBERS = Verb(number=18, name="group0_members", lane=Lane.CONTROL, request=MembersRequest, answer=Group0Report)
GROUP0_CHANGE_MEMBER = Verb(
    number=19, name="group0_change_member", lane=Lane.CONTROL, request=ChangeMemberRequest, answer=ExecuteAnswer
)
GROUP0_TRANSFER = Verb(
    number=20, name="group0_transfer", lane=Lane.CONTROL, request=TransferLeadershipRequest, answer=EmptyAnswer
)
FEED = Verb(number=21, name="feed", lane=Lane.CONTROL, request=FeedRequest, answer=FeedAnswer)
CHILD_REPORT = Verb(number=22, name="child_report", lane=Lane.CONTROL, request=ChildReport, answer=EmptyAnswer)
READ_BARRIER = Verb(
    number=23, name="read_barrier", lane=Lane.CONTROL, request=ReadBarrierRequest, answer=ReadBarrierAnswer
)
NODE_BARRIER = Verb(
    number=24, name="node_barrier", lane=Lane.CONTROL, request=NodeBarrierRequest, answer=NodeBarrierAnswer
)
SCHEMA = Verb(number=25, name="schema", lane=Lane.CONTROL, request=SchemaRequest, answer=SchemaAnswer)
WRITE_ROWS = Verb(number=26, name="write_rows", lane=Lane.DATA, request=WriteRowsRequest, answer=WriteRowsAnswer)
READ_ROWS = Verb(number=27, name="read_rows", lane=Lane.DATA, request=ReadRowsRequest, answer=ReadRowsAnswer)
STREAM_ROWS = Verb(number=28, name="stream_rows", lane=Lane.DATA, request=StreamRowsRequest, answer=EmptyAnswer)
# 29 and 30 were verbs of a client protocol for rows. Numbers are not used again.
COMPACT = Verb(number=31, name="compact", lane=Lane.DATA, request=CompactionJob, answer=CompactionResult)
METRICS = Verb(number=32, name="metrics", lane=Lane.CONTROL, request=MetricsRequest, answer=MetricsAnswer)
OPEN_SESSION = Verb(
    number=33, name="open_session", lane=Lane.CONTROL, request=OpenSessionRequest, answer=OpenSessionAnswer
)
CLOSE_SESSION = Verb(
    number=34, name="close_session", lane=Lane.CONTROL, request=CloseSessionRequest, answer=CloseSessionAnswer
)
CHECKPOINT = Verb(number=35, name="checkpoint", lane=Lane.DATA, request=CheckpointRequest, answer=CheckpointAnswer)
FIND_TARGET = Verb(number=36, name="find_target", lane=Lane.DATA, request=FindTargetRequest, answer=FindTargetAnswer)
ADOPT = Verb(number=37, name="adopt", lane=Lane.DATA, request=AdoptRequest, answer=AdoptAnswer)
TAKE_CHECKPOINT = Verb(
    number=38, name="take_checkpoint", lane=Lane.DATA, request=TakeCheckpointRequest, answer=TakeCheckpointAnswer
)
OPEN_STAGING = Verb(
    number=39, name="open_staging", lane=Lane.DATA, request=OpenStagingRequest, answer=OpenStagingAnswer
)
SEAL = Verb(number=40, name="seal", lane=Lane.DATA, request=SealRequest, answer=SealAnswer)
RELEASE = Verb(number=41, name="release", lane=Lane.DATA, request=ReleaseRequest, answer=EmptyAnswer)
BULK_STATUS = Verb(number=42, name="bulk_status", lane=Lane.DATA, request=BulkStatusRequest, answer=BulkStatusAnswer)
OPEN_TABLE_READ = Verb(
    number=43, name="open_table_read", lane=Lane.DATA, request=OpenTableReadRequest, answer=OpenTableReadAnswer
)
CLOSE_TABLE_READ = Verb(
    number=44, name="close_table_read", lane=Lane.DATA, request=CloseTableReadRequest, answer=EmptyAnswer
)

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

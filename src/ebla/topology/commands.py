"""Everything that may be committed to the topology, as structs.

A command states the intent and what its sender saw (`leaving`: the state or stage it acts on), never which keys to
write. `apply` checks it against the snapshot, so a command repeated by a new leader is refused, not applied twice.
Times are wall milliseconds of the proposer; ids are drawn by the proposer. Group 0 gets the rows that a command
changes, never the command.
"""

import msgspec

from ebla.model.identity import HostId, Replica, RequestId, SessionId, TableId, TopologyVersion
from ebla.topology.snapshot import (
    CdcGenerationPart,
    Exclusion,
    GenerationId,
    GlobalRequest,
    Keyspace,
    Node,
    NodeRequest,
    Session,
    Table,
)
from ebla.topology.states import ResizeType, TabletStage, TransitionKind, TransitionState


class Command(msgspec.Struct, frozen=True):
    """`apply/command.py` has the function that applies each kind."""


class CreateCluster(Command, frozen=True, kw_only=True):
    """The first node: normal at once, with its tokens and a CDC generation. A new topology needs no upgrade."""

    node: Node
    tokens: tuple[int, ...]
    generation: GenerationId
    timestamp_ms: int


class SubmitJoin(Command, frozen=True):
    """A new node requests to join, or to replace a dead node."""

    node: Node
    request: NodeRequest


class SubmitNodeRequest(Command, frozen=True):
    """Leave, remove or rebuild a node of the cluster."""

    request: NodeRequest


class SubmitGlobalRequest(Command, frozen=True):
    request: GlobalRequest


class AbortRequest(Command, frozen=True):
    """Withdraw a request. A pending one ends at once; a node that has not joined yet becomes `left`. For one that runs,
    the error is stored on the request, so that a new leader rolls it back too. Refused once there is no way back."""

    request: RequestId
    reason: str
    now_ms: int


class CancelRequest(Command, frozen=True):
    """A pending request could not run for too long. It ends as if it were aborted."""

    request: RequestId
    reason: str
    now_ms: int


class StartNodeRequest(Command, frozen=True):
    """The coordinator starts a pending request. Only a rebuild needs `session`."""

    request: RequestId
    session: SessionId | None = None


class RejectNode(Command, frozen=True):
    """A node that may not join (or was rejected while in `join_group0`) becomes `left` without ever having joined."""

    host: HostId
    reason: str
    now_ms: int


class RemoveNodeWithoutData(Command, frozen=True):
    """A normal node becomes `left` at once. Only while the cluster has no table and another node owns tokens."""

    host: HostId
    now_ms: int


class ChooseTokens(Command, frozen=True):
    """Ends `join_group0`: the node is in group 0. A replacing node inherits its tokens and names no generation."""

    host: HostId
    tokens: tuple[int, ...]
    generation: GenerationId | None


class CommitCdcGeneration(Command, frozen=True, kw_only=True):
    """Ends `commit_cdc_generation`. `session` opens with `write_both_read_old` when a node is joining."""

    timestamp_ms: int
    session: SessionId
    now_ms: int
    fence: TopologyVersion = TopologyVersion(0)


class AdvanceNode(Command, frozen=True, kw_only=True):
    """The action of (node state, transition state) is done: go to the next row of the node table."""

    host: HostId
    leaving: TransitionState | None
    session: SessionId | None = None
    """Opened if the next row runs under one."""
    now_ms: int
    fence: TopologyVersion = TopologyVersion(0)
    """The version whose barrier succeeded; the same commit raises the fence to it. 0: none."""
    streamed_bytes: int = 0
    streamed_ranges: int = 0
    skipped: tuple[str, ...] = ()


class RollBackNode(Command, frozen=True, kw_only=True):
    """The action failed: take the failure edge of the node table. Refused where the table says to repeat."""

    host: HostId
    leaving: TransitionState | None
    reason: str
    now_ms: int


class FailDraining(Command, frozen=True):
    """Draining cannot succeed. Running moves end first (INV-TABL-3); then the operation is rolled back.

    Stored, so that a new leader does not start draining again.
    """

    host: HostId
    reason: str


class CompleteRequest(Command, frozen=True):
    """In `left_token_ring`: the operator gets the answer before the node is ordered to stop."""

    host: HostId
    now_ms: int


class FencePredecessor(Command, frozen=True):
    """The first commit of a coordinator: rewrites the state row as it is. Every step is conditional on that row, so
    nothing that an earlier coordinator still has in flight can commit after this."""


class RaiseFence(Command, frozen=True):
    """A barrier for `version` succeeded on every node: nothing older is accepted any more."""

    version: TopologyVersion


class SetIgnoredNodes(Command, frozen=True):
    """The dead nodes that the operator ignores; replaces the previous list, except for excluded hosts."""

    hosts: tuple[HostId, ...]


class ExcludeHosts(Command, frozen=True):
    """Failover: barriers do not wait for these hosts and they get no tablets, until each is included again. All or
    none. Automatic ones count."""

    exclusions: tuple[Exclusion, ...]


class IncludeHost(Command, frozen=True):
    """Recovery of an excluded host."""

    host: HostId


class ResetFailoverCount(Command, frozen=True):
    """Automatic failover may act again."""


class RefreshNode(Command, frozen=True, kw_only=True):
    """A node restarted, perhaps with another release, address or shard count."""

    host: HostId
    release_version: str
    address: str
    shard_count: int
    ignore_msb: int
    supported_features: tuple[str, ...]


class EnableFeatures(Command, frozen=True):
    """When idle, after a barrier: a node that has not seen the versions up to now may not know yet that it must not
    start without these features."""

    features: tuple[str, ...]
    fence: TopologyVersion
    """The current version, whose barrier succeeded."""


class SetBalancing(Command, frozen=True):
    enabled: bool


class FinishGlobalRequest(Command, frozen=True):
    """Done, or (with an error) abandoned. Also ends `commit_cdc_generation` if the request was in it."""

    request: RequestId
    error: str
    now_ms: int


class StartCdcCommit(Command, frozen=True):
    """Starts a request for a new CDC generation whose data is complete in group 0."""

    request: RequestId
    generation: GenerationId


class StartRfChange(Command, frozen=True):
    """Starts a change of replication: the keyspace's new factors and the moves that implement them, in one commit."""

    request: RequestId
    moves: "tuple[TabletMove, ...]"


class WriteCdcPart(Command, frozen=True, kw_only=True):
    """A part of a generation that is not in use yet; not conditional on a step."""

    generation: GenerationId
    part_count: int
    number: int
    part: CdcGenerationPart


class MarkCdcPublished(Command, frozen=True):
    generation: GenerationId


class DropCdcGenerations(Command, frozen=True):
    """Generations that no write can need any more, or data of one that was never committed."""

    generations: tuple[GenerationId, ...]


class TabletMove(msgspec.Struct, frozen=True, kw_only=True):
    table: TableId
    tablet: int
    kind: TransitionKind
    new_replicas: tuple[Replica, ...]


class StartMoves(Command, frozen=True):
    """Starts transitions of at most `MOVES_PER_COMMIT_MAX` tablets; at rest the same step enters
    `tablet_migration`."""

    moves: tuple[TabletMove, ...]


class TabletAdvance(msgspec.Struct, frozen=True, kw_only=True):
    table: TableId
    tablet: int
    leaving: TabletStage
    session: SessionId
    """Used if the next stage opens one."""
    failed: bool = False
    """Take the error edge of the stage instead, if the stage table has one for the replicas that were lost."""
    hopeless: bool = False
    """With `failed`: streaming cannot succeed (no room, or the leave it serves was cancelled)."""


class AdvanceTablets(Command, frozen=True):
    """One step of each of these tablets, as one version; at most `STEPS_PER_COMMIT_MAX`."""

    steps: tuple[TabletAdvance, ...]
    fence: TopologyVersion = TopologyVersion(0)
    """The version whose barrier every node acknowledged; the fence rises to it in the same commit. 0: none."""


class LeaveMigrationTrack(Command, frozen=True):
    """No tablet is in transition any more: go to a waiting resize, or to rest."""


class RecordRepair(Command, frozen=True):
    """Times up to which these tablets, none of them in transition, were repaired."""

    table: TableId
    tablets: tuple[tuple[int, int], ...]
    """Tablet number and wall time."""


class DecideResize(Command, frozen=True):
    """A new decision (`none` revokes the one before)."""

    table: TableId
    kind: ResizeType


class ReportResizeReady(Command, frozen=True):
    """Every replica has reported this resize number."""

    table: TableId
    number: int


class StartResizeFinalization(Command, frozen=True):
    """Only at rest, so that no migration meets a changing tablet count."""


class NewStreams(msgspec.Struct, frozen=True):
    """When a set of change streams begins to hold, and the mark drawn for it."""

    timestamp_ms: int
    mark: int


class FinalizeResize(Command, frozen=True):
    """After the barrier: ready tables get their new maps, as many as fit one commit; after the last one the topology
    is at rest."""

    fence: TopologyVersion = TopologyVersion(0)
    streams: NewStreams | None = None
    """For those of the tables whose changes are captured."""


class CreateKeyspace(Command, frozen=True):
    keyspace: Keyspace


class AlterKeyspace(Command, frozen=True):
    """New factors for a keyspace on vnodes; a keyspace on tablets uses a global request."""

    keyspace: Keyspace


class DropKeyspace(Command, frozen=True):
    name: str


class CreateTable(Command, frozen=True):
    """With the replicas of each tablet, for a keyspace on tablets; none on vnodes.

    The id is drawn for this attempt. If a retry reused it after the table had been dropped in between, the new table
    would receive late writes of the old one.
    """

    table: Table
    replica_sets: tuple[tuple[Replica, ...], ...] = ()
    streams: NewStreams | None = None
    """For a table on tablets whose changes are captured."""


class AlterTable(Command, frozen=True):
    table: Table
    streams: NewStreams | None = None
    """If changes of a table on tablets are captured for the first time."""


class DropStreamSets(Command, frozen=True):
    """The sets of the table's change streams before this one have no records left to read."""

    table: TableId
    oldest_kept_ms: int


class DropTable(Command, frozen=True):
    table: TableId


class OpenBulkSession(Command, frozen=True):
    session: Session
    known_version: TopologyVersion | None = None
    """The version that the owner, or the node it called, had seen before this session was requested; None: the id is
    known to no one else, and this is the only attempt."""


class CloseSessions(Command, frozen=True):
    """Bulk jobs that ended, passed their deadline, or lost their table. Stages and requests close their own
    sessions."""

    sessions: tuple[SessionId, ...]


class StartUpgrade(Command, frozen=True):
    """The operator starts the upgrade from settings-based topology."""


class BuildCoordinatorState(Command, frozen=True, kw_only=True):
    """The coordinator writes the topology from the settings into group 0, which completes the upgrade."""

    nodes: tuple[Node, ...]
    keyspaces: tuple[Keyspace, ...]
    tables: tuple[Table, ...]
    generation: GenerationId
    timestamp_ms: int

"""One immutable description of the cluster. All decisions are based on it and on nothing else.

Rows are msgspec structs because they are also the values stored in group 0 (`keys.py` says where). The snapshot itself
lives in memory only: maps of rows, and tablet maps that share structure between versions.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ebla.model.identity import HostId, RequestId, SessionId, TableId, TopologyVersion
from ebla.model.opinions import Opinion
from ebla.model.transaction import Revision
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.states import (
    SERVING_STATES,
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    SessionKind,
    Strategy,
    TransitionState,
    UpgradeState,
)
from ebla.topology.tablet_map import TabletMap

GenerationId = uuid.UUID


class Node(msgspec.Struct, frozen=True, tag="node", array_like=True, kw_only=True):
    """A present or former member: the row of `system.topology`."""

    host: HostId
    datacenter: str
    rack: str
    shard_count: int
    ignore_msb: int
    release_version: str
    address: str
    """Where its processes listen; the ports are the same on every node."""
    num_tokens: int
    state: NodeState = NodeState.NONE
    tokens: tuple[int, ...] = ()
    """Sorted. Empty before they are chosen and after the node left the ring."""
    request: RequestId | None = None
    """Its pending or running request."""
    replaced: HostId | None = None
    """The node that this one replaces, or replaced."""
    rebuild_source: str | None = None
    """Datacenter to stream from while rebuilding; None: any."""
    supported_features: tuple[str, ...] = ()
    is_incomplete: bool = False
    """It became a replica while it was excluded, so it lacks rows that quorums rely on: it never serves again, and can
    only be removed or replaced (INV-NODE-23)."""

    @property
    def in_transition(self) -> bool:
        return self.state not in (NodeState.NONE, NodeState.NORMAL, NodeState.LEFT)

    @property
    def takes_clients(self) -> bool:
        """Whether drivers may connect to it. A leaving node takes none from the moment its tokens are taken."""
        return bool(self.tokens) and self.state in SERVING_STATES


class NodeRequest(msgspec.Struct, frozen=True, tag="node_request", array_like=True, kw_only=True):
    """A request about one node, and its outcome."""

    id: RequestId
    kind: NodeRequestKind
    host: HostId
    initiator: HostId
    start_ms: int
    replaced: HostId | None = None
    ignored_nodes: tuple[HostId, ...] = ()
    rebuild_source: str | None = None
    outcome: RequestOutcome = RequestOutcome.PENDING
    error: str = ""
    end_ms: int | None = None
    streamed_bytes: int = 0
    """What its streams have moved, once they have ended."""
    streamed_ranges: int = 0
    excluded_at_start: tuple[HostId, ...] = ()
    """Of a remove: the hosts that were excluded when it started. They are no pending replicas in it."""
    skipped: tuple[str, ...] = ()
    """What they could not move, for people: a line for each table."""
    end_version: TopologyVersion = TopologyVersion(0)
    """The version that ended it."""

    @property
    def excludes(self) -> tuple[HostId, ...]:
        """The hosts that are excluded because of this request: the dead node, and those that the operator ignores."""
        return (*self.presumed_dead, *self.ignored_nodes)

    @property
    def presumed_dead(self) -> tuple[HostId, ...]:
        """The node that the request assumes to be dead."""
        if self.kind is NodeRequestKind.REMOVE:
            return (self.host,)
        return () if self.replaced is None else (self.replaced,)

    @property
    def is_open(self) -> bool:
        return self.outcome in (RequestOutcome.PENDING, RequestOutcome.RUNNING)


class GlobalRequest(msgspec.Struct, frozen=True, tag="global_request", array_like=True, kw_only=True):
    """A request about the whole cluster, and its outcome."""

    id: RequestId
    kind: GlobalRequestKind
    initiator: HostId
    start_ms: int
    keyspace: str = ""
    """For a change of replication: the keyspace and its new factors."""
    new_factors: tuple[tuple[str, int], ...] = ()
    outcome: RequestOutcome = RequestOutcome.PENDING
    error: str = ""
    end_ms: int | None = None
    generation: GenerationId | None = None
    """The CDC generation that it commits, or has committed; None when it is done: there was nothing to do."""

    @property
    def is_open(self) -> bool:
        return self.outcome in (RequestOutcome.PENDING, RequestOutcome.RUNNING)


class Session(msgspec.Struct, frozen=True, tag="session", array_like=True, kw_only=True):
    """The right of one operation to have side effects. Listed = open; not listed = closing or closed."""

    id: SessionId
    kind: SessionKind
    table: TableId | None = None
    """The table of a stage or bulk job."""
    tablet: int | None = None
    """The tablet of a stage."""
    request: RequestId | None = None
    """The request, or the id of the bulk job."""
    deadline_ms: int | None = None
    """Bulk jobs only: wall time after which the leader closes it."""


class Replication(msgspec.Struct, frozen=True, tag="replication", array_like=True):
    """Replicas per datacenter, sorted by name; SimpleStrategy has one factor under the empty name."""

    strategy: Strategy
    factors: tuple[tuple[str, int], ...]

    def factor(self, datacenter: str) -> int:
        return next((count for name, count in self.factors if name == datacenter), 0)

    @property
    def total(self) -> int:
        return sum(count for _, count in self.factors)


class Keyspace(msgspec.Struct, frozen=True, tag="keyspace", array_like=True, kw_only=True):
    name: str
    replication: Replication
    on_tablets: bool
    initial_tablets: int = 0
    """Tablets of a new table; 0 leaves it to the balancer."""
    durable_writes: bool = True


class Table(msgspec.Struct, frozen=True, tag="table", array_like=True, kw_only=True):
    """The topology's part of a table. `definition` (columns, options) is opaque here."""

    id: TableId
    keyspace: str
    name: str
    cdc: bool = False
    min_tablet_count: int = 0
    definition: bytes = b""

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"


class CdcRange(msgspec.Struct, frozen=True, tag="cdc_range", array_like=True):
    """The streams of the vnode that ends at `range_end`, one per shard of its owner."""

    range_end: int
    streams: tuple[bytes, ...]
    ignore_msb: int


class CdcGenerationPart(msgspec.Struct, frozen=True, tag="cdc_generation_part", array_like=True):
    """A part of a generation's data, small enough for one group 0 command."""

    ranges: tuple[CdcRange, ...]


class CdcGeneration(msgspec.Struct, frozen=True, tag="cdc_generation", array_like=True, kw_only=True):
    """One vnode generation. Its data is written first; the timestamp is set when it is committed."""

    id: GenerationId
    part_count: int
    timestamp_ms: int | None = None
    published: bool = False


class Exclusion(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Why a host is excluded, for operators."""

    host: HostId
    since_ms: int
    """Wall time of the leader that excluded it."""
    by: HostId
    """That leader."""
    is_automatic: bool = False
    is_forced: bool = False
    opinions: tuple[Opinion, ...] = ()
    """Of the voters, about this host, when it was excluded."""


class TopologyState(msgspec.Struct, frozen=True, tag="topology", array_like=True, kw_only=True):
    """The static columns: one row for the whole cluster, rewritten by every step."""

    version: TopologyVersion = TopologyVersion(1)
    fence: TopologyVersion = TopologyVersion(1)
    transition: TransitionState | None = None
    transition_since: TopologyVersion = TopologyVersion(1)
    """The version that entered it. A state with a barrier is left only once the fence has reached it."""
    session: SessionId | None = None
    """The one session of a vnode operation."""
    ignored_nodes: tuple[HostId, ...] = ()
    """Excluded nodes, by failover or by a request: barriers do not wait for them, and they serve nothing. Sorted; an id
    is removed when its node becomes `left`."""
    enabled_features: tuple[str, ...] = ()
    new_cdc_generation: GenerationId | None = None
    """Data written, to be committed in `commit_cdc_generation`."""
    global_requests: tuple[RequestId, ...] = ()
    """Open ones, oldest first; the head is the one that runs."""
    balancing_enabled: bool = True
    upgrade: UpgradeState = UpgradeState.NOT_UPGRADED
    bulk_closed: tuple[SessionId, ...] = ()
    """Closed sessions of bulk jobs, the latest last: a late duplicate of their opening is refused."""
    bulk_forgotten: TopologyVersion = TopologyVersion(0)
    """The version that closed the last session dropped from the list. A session requested before it may have been
    dropped."""
    bulk_closed_at: tuple[TopologyVersion, ...] = ()
    """The version that closed each of `bulk_closed`."""
    exclusions: tuple[Exclusion, ...] = ()
    """By host. Such a host is ignored until it is included again or has left, whatever requests ignore it too."""
    failover_count: int = 0
    """Hosts that automatic failover has excluded since the count was last reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster at one revision of group 0 (or one state of the settings; users cannot tell which).

    Equality ignores `revisions` (when each key last changed), because a proposer knows what it wrote before it knows
    the index, and ignores the fields that this release cannot read.
    """

    state: TopologyState = field(default_factory=TopologyState)
    nodes: FrozenMap[HostId, Node] = field(default_factory=FrozenMap)
    node_requests: FrozenMap[RequestId, NodeRequest] = field(default_factory=FrozenMap)
    global_requests: FrozenMap[RequestId, GlobalRequest] = field(default_factory=FrozenMap)
    sessions: FrozenMap[SessionId, Session] = field(default_factory=FrozenMap)
    keyspaces: FrozenMap[str, Keyspace] = field(default_factory=FrozenMap)
    tables: FrozenMap[TableId, Table] = field(default_factory=FrozenMap)
    tablets: FrozenMap[TableId, TabletMap] = field(default_factory=FrozenMap)
    """One map per table whose keyspace is on tablets, once it is complete."""
    cdc_generations: FrozenMap[GenerationId, CdcGeneration] = field(default_factory=FrozenMap)
    cdc_parts: FrozenMap[tuple[GenerationId, int], CdcGenerationPart] = field(default_factory=FrozenMap)
    revisions: FrozenMap[str, Revision] = field(default_factory=FrozenMap, compare=False, repr=False)
    unknown_fields: FrozenMap[str, tuple[bytes, ...]] = field(default_factory=FrozenMap, compare=False, repr=False)
    """By key, what a newer release appended to the row; written back with it."""

    @property
    def version(self) -> TopologyVersion:
        return self.state.version

    @property
    def fence(self) -> TopologyVersion:
        return self.state.fence

    @property
    def transition(self) -> TransitionState | None:
        return self.state.transition

    def node(self, host: HostId) -> Node:
        """The row of a node that is known to exist."""
        return self.nodes[host]

    def exclusion_of(self, host: HostId) -> Exclusion | None:
        return next((one for one in self.state.exclusions if one.host == host), None)

    @property
    def excluded_hosts(self) -> tuple[HostId, ...]:
        """They serve nothing and count as down: excluded by failover, or by a request to remove or replace a node."""
        return self.state.ignored_nodes

    @property
    def hosts_not_pending(self) -> tuple[HostId, ...]:
        """The hosts that the running operation does not count as pending replicas: nobody streams to them."""
        node = self.node_in_transition()
        request = None if node is None else self.request_of(node)
        return () if request is None else request.excluded_at_start

    def nodes_in(self, *states: NodeState) -> Iterator[Node]:
        """Nodes in any of these states, by host id, so that every process iterates in the same order."""
        return (self.nodes[host] for host in sorted(self.nodes) if self.nodes[host].state in states)

    @property
    def departed_hosts(self) -> tuple[HostId, ...]:
        """Former members. The others that are `left` did not join, and ask for the reason."""
        joining = (NodeRequestKind.JOIN, NodeRequestKind.REPLACE)
        rejected = [one.host for one in self.node_requests.values() if one.kind in joining and one.error]
        return tuple(node.host for node in self.nodes_in(NodeState.LEFT) if node.host not in rejected)

    def members(self) -> Iterator[Node]:
        """Every node that has not left, by host id."""
        return (self.nodes[host] for host in sorted(self.nodes) if self.nodes[host].state is not NodeState.LEFT)

    def token_owners(self) -> Iterator[Node]:
        """Every node with tokens, by host id: the ring's, and those of a node that is joining or replacing."""
        return (node for node in self.members() if node.tokens)

    def node_in_transition(self) -> Node | None:
        """The one node that is joining, replacing, leaving, being removed or rebuilding (INV-NODE-2: at most one)."""
        return next((node for node in self.members() if node.in_transition), None)

    @property
    def running_operation(self) -> str:
        """For people: what the topology is doing now. Empty: it is idle."""
        node = self.node_in_transition()
        if node is None:
            return "" if self.transition is None else f"the operation in state {self.transition}"
        request = self.request_of(node)
        name = node.state.value if request is None else f"{request.kind} (request {request.id})"
        where = "" if self.transition is None else f", in {self.transition}"
        return f"the {name} of {node.host} at {node.address}{where}"

    def request_of(self, node: Node) -> NodeRequest | None:
        """Its pending or running request."""
        return None if node.request is None else self.node_requests.get(node.request)

    def table_named(self, keyspace: str, name: str) -> Table | None:
        found = (table for table in self.tables.values() if table.keyspace == keyspace and table.name == name)
        return next(found, None)

    def replication_of(self, table: TableId) -> Replication:
        return self.keyspaces[self.tables[table].keyspace].replication

    def on_tablets(self, table: TableId) -> bool:
        return self.keyspaces[self.tables[table].keyspace].on_tablets

    def vnode_replications(self) -> tuple[Replication, ...]:
        """Of the tables on vnodes, each once."""
        tables = (table for table in sorted(self.tables) if not self.on_tablets(table))
        return tuple(dict.fromkeys(self.replication_of(table) for table in tables))

    def has_tablets(self, host: HostId) -> bool:
        """Whether a current or new replica of any tablet is on this host."""
        return any(True for tablets in self.tablets.values() for _ in tablets.tablets_on(host))

    def tablet_replicas_on(self, host: HostId) -> int:
        """How many tablets have a current or new replica on this host."""
        return sum(1 for tablets in self.tablets.values() for _ in tablets.tablets_on(host))

    def in_tablet_transition(self, host: HostId) -> bool:
        """Whether this host has, loses or gains a tablet in transition."""
        return any(
            replica.host == host
            for tablets in self.tablets.values()
            for number, _ in tablets.transitions()
            for replica in tablets.all_replicas(number)
        )

    @property
    def any_tablet_transition(self) -> bool:
        return any(tablets.any_transition for tablets in self.tablets.values())

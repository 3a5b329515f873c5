"""Which request runs next, and why the others do not, with the reasons as data."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from ebla.model.errors import EblaError, InvalidRequest, Refused
from ebla.model.identity import HostId, RequestId
from ebla.topology.commands import CancelRequest
from ebla.topology.features import missing_to_join
from ebla.topology.node_states import REQUEST_STARTS
from ebla.topology.routing.vnode_streams import gaining_hosts
from ebla.topology.snapshot import Node, NodeRequest, Replication, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, Strategy
from ebla.topology.token_allocation import choose_tokens

PRIORITY: tuple[NodeRequestKind, ...] = (
    NodeRequestKind.REPLACE,
    NodeRequestKind.JOIN,
    NodeRequestKind.REMOVE,
    NodeRequestKind.LEAVE,
    NodeRequestKind.REBUILD,
)
"""Best first: what restores redundancy goes before what reduces it."""
LEAVING_KINDS = (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)
JOINING_KINDS = (NodeRequestKind.JOIN, NodeRequestKind.REPLACE)
SETTLED_KINDS = (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE, NodeRequestKind.REBUILD)
"""A barrier at the version that ended one of these precedes the report of success."""


@dataclass(frozen=True, slots=True)
class LivenessView:
    """Which nodes are alive, as the coordinator sees it, and its wall clock. The sets are queried, never iterated."""

    alive: frozenset[HostId]
    now_ms: int
    lost: frozenset[HostId] = frozenset()
    """Down for so long that an operation does not go on without them."""

    def alive_of(self, hosts: tuple[HostId, ...]) -> tuple[HostId, ...]:
        return tuple(host for host in hosts if host in self.alive)


class Reason(enum.StrEnum):
    """Why a request cannot run, or may not be made. `ADVICE` has the ways out."""

    NODES_DOWN = "nodes down and not excluded"
    EXCLUDED_GAINS = "excluded node would gain ranges"
    IGNORED_ALIVE = "node to ignore is alive"
    IGNORED_UNKNOWN = "node to ignore is no member"
    TARGET_ALIVE = "node to remove or replace is alive"
    TARGET_DOWN = "node is down"
    TARGET_EXCLUDED = "node is excluded"
    TARGET_UNKNOWN = "no such node"
    TARGET_NOT_NORMAL = "node is not normal"
    HAS_REQUEST = "node already has a request"
    BEING_REPLACED = "node is already being replaced"
    HOLDS_TABLETS = "node holds tablets"
    REPLACED_NOT_NORMAL = "the node to replace is not in the state normal"
    REPLACED_ELSEWHERE = "a node may only be replaced by one of the same datacenter and rack"
    FEATURES_MISSING = "the node lacks features that the cluster has enabled"
    LAST_OWNER = "it is the last node that owns tokens"
    TOO_FEW_LEFT = "too few nodes would remain for the replication of a keyspace"
    UNKNOWN_DATACENTER = "no node of the datacenter to rebuild from"

    @property
    def is_invalid(self) -> bool:
        """The request names something that does not exist or does not fit, and fails again however the cluster is."""
        return self in _INVALID


_INVALID = (Reason.TARGET_UNKNOWN, Reason.IGNORED_UNKNOWN, Reason.REPLACED_ELSEWHERE, Reason.UNKNOWN_DATACENTER)

ADVICE: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.NODES_DOWN: "start them, or exclude them: --ignore-dead HOST with a remove or replace, or ebla failover",
        Reason.EXCLUDED_GAINS: "remove or replace it first: ebla removenode, or ebla add-node --replace",
        Reason.IGNORED_ALIVE: "name only nodes that are down",
        Reason.IGNORED_UNKNOWN: "see ebla status for the members",
        Reason.TARGET_ALIVE: "decommission it (ebla decommission); if it is excluded, stop it first",
        Reason.TARGET_DOWN: "start it, or remove it: ebla removenode",
        Reason.TARGET_EXCLUDED: "recover it first (ebla recover), or stop it and remove it (ebla removenode)",
        Reason.TARGET_UNKNOWN: "see ebla status for the members",
        Reason.HAS_REQUEST: "wait for it, or abort it: ebla topology abort REQUEST",
        Reason.BEING_REPLACED: "wait for it, or abort it: ebla topology abort REQUEST",
        Reason.REPLACED_ELSEWHERE: "start the new node with that datacenter and rack",
        Reason.FEATURES_MISSING: "start it with a release that has them",
        Reason.LAST_OWNER: "add a node first",
        Reason.TOO_FEW_LEFT: "add a node first, or lower the replication of the keyspace",
    }
)


@dataclass(frozen=True, slots=True)
class Objection:
    reason: Reason
    hosts: tuple[HostId, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        return self._joined([str(host) for host in self.hosts])

    def text(self, snapshot: Snapshot) -> str:
        """For operators, who know nodes by address."""
        return self._joined(
            [snapshot.nodes[host].address if host in snapshot.nodes else str(host) for host in self.hosts]
        )

    def _joined(self, names: list[str]) -> str:
        return ": ".join(part for part in (self.reason.value, ", ".join(names), self.detail) if part)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one pending request. No objection: viable."""

    request: NodeRequest
    objections: tuple[Objection, ...]

    @property
    def viable(self) -> bool:
        return not self.objections


@dataclass(frozen=True, slots=True)
class StartRequest:
    """`verdicts` has every pending request, best priority first."""

    request: NodeRequest
    verdicts: tuple[Verdict, ...]
    why: str


@dataclass(frozen=True, slots=True)
class RejectRequest:
    """This request is next, and its node may not join."""

    request: NodeRequest
    objections: tuple[Objection, ...]
    why: str


@dataclass(frozen=True, slots=True)
class BlockedQueue:
    """No pending request can run. `RequestGrace` says when they are cancelled."""

    verdicts: tuple[Verdict, ...]
    why: str


QueueChoice = StartRequest | RejectRequest | BlockedQueue


def pending_requests(snapshot: Snapshot) -> tuple[NodeRequest, ...]:
    """Best priority first, then the oldest, then by id."""
    pending = [each for each in snapshot.node_requests.values() if each.outcome is RequestOutcome.PENDING]
    return tuple(sorted(pending, key=lambda each: (PRIORITY.index(each.kind), each.start_ms, each.id)))


def unsettled_requests(snapshot: Snapshot) -> tuple[NodeRequest, ...]:
    """Requests that are done, except that some node may not have the version that ended them. The fence proves the
    barrier."""
    done = (each for each in snapshot.node_requests.values() if each.outcome is RequestOutcome.DONE)
    found = (each for each in done if each.kind in SETTLED_KINDS and each.end_version > snapshot.fence)
    return tuple(sorted(found, key=lambda each: each.end_version))


def latest_join(snapshot: Snapshot, host: HostId) -> NodeRequest | None:
    """The join request of this host: an open one, or the last that ended."""
    found = [each for each in snapshot.node_requests.values() if each.host == host and each.kind in JOINING_KINDS]
    return max(found, key=lambda each: (each.is_open, each.start_ms, each.id), default=None)


def queue_position(snapshot: Snapshot, request: RequestId) -> int:
    """From 1, among the pending requests; 0: it is not pending."""
    return next((place for place, each in enumerate(pending_requests(snapshot), 1) if each.id == request), 0)


def choose_request(snapshot: Snapshot, liveness: LivenessView) -> QueueChoice | None:
    """The request to start while no node is in transition and the topology is at rest. None: no request is pending."""
    pending = pending_requests(snapshot)
    if not pending:
        return None
    verdicts = tuple(Verdict(request, _blockers(snapshot, request, liveness)) for request in pending)
    best = next((verdict.request for verdict in verdicts if verdict.viable), None)
    if best is None:
        return BlockedQueue(verdicts, "no request can run: " + objections_text(snapshot, verdicts[0].objections))
    objections = _admission(snapshot, best)
    if objections:
        return RejectRequest(best, objections, objections_text(snapshot, objections))
    return StartRequest(best, verdicts, f"{best.kind} has the best priority")


def objections_text(snapshot: Snapshot, objections: tuple[Objection, ...]) -> str:
    return "; ".join(objection.text(snapshot) for objection in objections)


def cancellation(snapshot: Snapshot, verdict: Verdict, now_ms: int) -> CancelRequest:
    """Of a request that `RequestGrace` calls overdue."""
    return CancelRequest(verdict.request.id, objections_text(snapshot, verdict.objections), now_ms)


def _blockers(snapshot: Snapshot, request: NodeRequest, liveness: LivenessView) -> tuple[Objection, ...]:
    """Dead nodes that block a request: a dead node may have the only fresh copy of a range that moves. Excluded ones do
    not block, because nobody counts on their copies: streams read around them. A rebuild needs only its own node."""
    if request.kind in (NodeRequestKind.LEAVE, NodeRequestKind.REBUILD):
        if request.host in snapshot.excluded_hosts:
            return (Objection(Reason.TARGET_EXCLUDED, (request.host,)),)
        if request.host not in liveness.alive:
            return (Objection(Reason.TARGET_DOWN, (request.host,)),)
    if request.kind is NodeRequestKind.REBUILD:
        return ()
    alive = liveness.alive_of(request.presumed_dead)
    if alive:
        # It has returned since the request was made, and would keep serving tokens that are taken from it.
        return (Objection(Reason.TARGET_ALIVE, alive),)
    down = _nodes_down(snapshot, liveness, (*snapshot.excluded_hosts, *request.presumed_dead))
    return (*down, *_excluded_gains(snapshot, request))


def _excluded_gains(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """An excluded node that gains a range by the new ring would become a replica without the rows: nobody can stream to
    it. A remove is not held up: of two dead nodes, each would forbid the removal of the other."""
    excluded = snapshot.state.ignored_nodes
    if request.kind is NodeRequestKind.REMOVE or not excluded:
        return ()
    node = snapshot.node(request.host)
    replaced = None if request.replaced is None else snapshot.nodes.get(request.replaced)
    if request.replaced is not None and (replaced is None or replaced.state is not NodeState.NORMAL):
        return ()  # `_admission` rejects it
    start = REQUEST_STARTS[request.kind].target
    assert start.state is not None
    tokens = choose_tokens(snapshot, node) if request.kind in JOINING_KINDS else node.tokens
    moving = msgspec.structs.replace(node, state=start.state, tokens=tokens)
    gaining = gaining_hosts(replace(snapshot, nodes=snapshot.nodes.put(node.host, moving)))
    found = tuple(host for host in excluded if host in gaining)
    return (Objection(Reason.EXCLUDED_GAINS, found),) if found else ()


def _nodes_down(snapshot: Snapshot, liveness: LivenessView, excused: tuple[HostId, ...]) -> tuple[Objection, ...]:
    others = (node.host for node in snapshot.nodes_in(NodeState.NORMAL) if node.host not in excused)
    down = tuple(host for host in others if host not in liveness.alive)
    return (Objection(Reason.NODES_DOWN, down),) if down else ()


def _admission(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """Objections to a new node, independent of liveness; none for requests of members."""
    if request.kind not in JOINING_KINDS:
        return ()
    node = snapshot.node(request.host)
    objections: list[Objection] = []
    missing = missing_to_join(snapshot.state, node.supported_features)
    if missing:
        objections.append(Objection(Reason.FEATURES_MISSING, (node.host,), ", ".join(missing)))
    if request.replaced is not None:
        replaced = snapshot.nodes.get(request.replaced)
        if replaced is None or replaced.state is not NodeState.NORMAL:
            objections.append(Objection(Reason.REPLACED_NOT_NORMAL, (request.replaced,)))
        elif (replaced.datacenter, replaced.rack) != (node.datacenter, node.rack):
            objections.append(Objection(Reason.REPLACED_ELSEWHERE, (request.replaced,)))
    return tuple(objections)


def objections_to_submit(
    snapshot: Snapshot, request: NodeRequest, liveness: LivenessView, joining: Node | None = None
) -> tuple[Objection, ...]:
    """Why the node that receives a request should refuse it at once. `apply` repeats the checks that need no
    liveness."""
    found = list(standing_objections(snapshot, request, joining))
    if alive := liveness.alive_of(request.presumed_dead):
        found.append(Objection(Reason.TARGET_ALIVE, alive))
    if alive := liveness.alive_of(request.ignored_nodes):
        found.append(Objection(Reason.IGNORED_ALIVE, alive))
    if request.presumed_dead:
        found.extend(_nodes_down(snapshot, liveness, (*snapshot.excluded_hosts, *request.excludes)))
    if request.kind in LEAVING_KINDS and (count := snapshot.tablet_replicas_on(request.host)):
        found.append(Objection(Reason.HOLDS_TABLETS, (), f"{count} tablet replicas, which cannot be moved yet"))
    return tuple(found)


def submission_error(snapshot: Snapshot, objections: Sequence[Objection]) -> EblaError:
    """What the submitter gets; there is an objection. Nothing was changed."""
    first = next((one for one in objections if one.reason.is_invalid), objections[0])
    kind = InvalidRequest if first.reason.is_invalid else Refused
    return kind(first.text(snapshot), advice=ADVICE.get(first.reason, ""))


def standing_objections(snapshot: Snapshot, request: NodeRequest, joining: Node | None = None) -> tuple[Objection, ...]:
    """Why the request may not be made, whoever is alive. `joining`: the row of a new node. The first one is the
    cause; the rest may be its consequences."""
    if request.kind is NodeRequestKind.JOIN:
        return ()
    host = request.host if request.replaced is None else request.replaced
    target = snapshot.nodes.get(host)
    if target is None:
        return (Objection(Reason.TARGET_UNKNOWN, (host,)),)
    found: list[Objection] = []
    if target.state is not NodeState.NORMAL:
        found.append(Objection(Reason.TARGET_NOT_NORMAL, (host,), f"it is {target.state}"))
    found.extend(_objections_by_requests(snapshot, request, target))
    if joining is not None and (target.datacenter, target.rack) != (joining.datacenter, joining.rack):
        places = f"it is in {target.datacenter}/{target.rack}, the new node in {joining.datacenter}/{joining.rack}"
        found.append(Objection(Reason.REPLACED_ELSEWHERE, (host,), places))
    if request.kind in (NodeRequestKind.LEAVE, NodeRequestKind.REBUILD) and host in snapshot.excluded_hosts:
        found.append(Objection(Reason.TARGET_EXCLUDED, (host,)))
    members = [node.host for node in snapshot.members()]
    if unknown := tuple(one for one in request.ignored_nodes if one not in members):
        found.append(Objection(Reason.IGNORED_UNKNOWN, unknown))
    return (*found, *_objections_to_removal(snapshot, request), *_objections_to_source(snapshot, request))


def _objections_by_requests(snapshot: Snapshot, request: NodeRequest, target: Node) -> Iterator[Objection]:
    """A replace cancels what the dead node had requested; it cannot continue that."""
    if target.request is not None and request.kind is not NodeRequestKind.REPLACE:
        yield Objection(Reason.HAS_REQUEST, (target.host,), f"request {target.request}")
    rivals = (one for one in snapshot.node_requests.values() if one.is_open and one.replaced == target.host)
    rival = min((one.id for one in rivals), default=None)
    if rival is not None:
        yield Objection(Reason.BEING_REPLACED, (target.host,), f"request {rival}")


def _objections_to_source(snapshot: Snapshot, request: NodeRequest) -> Iterator[Objection]:
    wanted = request.rebuild_source
    if wanted is not None:
        others = [node for node in snapshot.nodes_in(NodeState.NORMAL) if node.host != request.host]
        known = sorted({node.datacenter for node in others})
        if wanted not in known:
            yield Objection(Reason.UNKNOWN_DATACENTER, (), f"{wanted}; known are {', '.join(known) or 'none'}")


def _objections_to_removal(snapshot: Snapshot, request: NodeRequest) -> tuple[Objection, ...]:
    """A node may leave only if the remaining nodes can hold every keyspace on tablets and some node owns tokens."""
    if request.kind not in LEAVING_KINDS or request.host not in snapshot.nodes:
        return ()
    target = snapshot.node(request.host)
    staying = [node for node in snapshot.nodes_in(NodeState.NORMAL) if _stays(snapshot, node, request)]
    if not any(node.tokens for node in staying):
        return (Objection(Reason.LAST_OWNER, (target.host,)),)
    here = sum(node.datacenter == target.datacenter for node in staying)
    short = sorted(
        keyspace.name
        for keyspace in snapshot.keyspaces.values()
        if keyspace.on_tablets and _needed(keyspace.replication, target.datacenter) > here
    )
    if not short:
        return ()
    return (Objection(Reason.TOO_FEW_LEFT, (), f"{here} in {target.datacenter}, for {', '.join(short)}"),)


def _needed(replication: Replication, datacenter: str) -> int:
    simple = replication.strategy is Strategy.SIMPLE
    return replication.total if simple else replication.factor(datacenter)


def _stays(snapshot: Snapshot, node: Node, request: NodeRequest) -> bool:
    """Excludes the node itself and every node that is about to leave, so that queued leaves add up."""
    if node.host == request.host:
        return False
    other = snapshot.request_of(node)
    return other is None or other.kind not in LEAVING_KINDS


def draining_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """Nodes whose tablets must move away now: the node that leaves or is removed, and those that wait to be. They are
    drained together, so that each later request is short. By host id."""
    if snapshot.node_in_transition() is None:
        return ()
    requests = (snapshot.request_of(node) for node in snapshot.members())
    return tuple(each.host for each in requests if each is not None and not each.error and each.kind in LEAVING_KINDS)


@dataclass(slots=True)
class _Standing:
    """How long the objections of one request have stood, up to the last look."""

    verdict: Verdict
    counted_ms: int = 0


class RequestGrace:
    """Measures how long pending requests could not run, by the boot clock of one leader.

    Time counts only from one blocked look to the next: while something runs, or could run, the objection may be about
    to go. Otherwise a join that a dead node blocks would be cancelled while the replacement of that node runs. Changed
    objections start again.
    """

    def __init__(self) -> None:
        self._standing: dict[RequestId, _Standing] = {}
        self._counts_since_ms: int | None = None
        """The last look, if the queue was blocked then."""

    def observe(self, found: QueueChoice | None, boot_ms: int) -> None:
        """At every look at the queue. None: something runs, so the queue was not looked at."""
        passed_ms = self._passed_ms(boot_ms)
        for each in self._standing.values():
            each.counted_ms += passed_ms
        self._counts_since_ms = boot_ms if isinstance(found, BlockedQueue) else None
        if isinstance(found, (BlockedQueue, StartRequest)):
            self._keep(found.verdicts)

    def _keep(self, verdicts: Sequence[Verdict]) -> None:
        before = self._standing
        self._standing = {}
        for verdict in verdicts:
            if verdict.viable:
                continue
            known = before.get(verdict.request.id)
            is_same = known is not None and known.verdict.objections == verdict.objections
            self._standing[verdict.request.id] = known if known is not None and is_same else _Standing(verdict)

    def overdue(self, grace_ms: int, boot_ms: int) -> tuple[Verdict, ...]:
        """The requests to cancel now; none while something runs or can run."""
        if self._counts_since_ms is None:
            return ()
        passed_ms = self._passed_ms(boot_ms)
        return tuple(each.verdict for each in self._standing.values() if each.counted_ms + passed_ms >= grace_ms)

    def left_ms(self, request: RequestId, grace_ms: int, boot_ms: int) -> int | None:
        """Until the request is cancelled, if its objections stand and nothing runs; None: nothing is known against
        it."""
        known = self._standing.get(request)
        return None if known is None else max(0, grace_ms - known.counted_ms - self._passed_ms(boot_ms))

    def _passed_ms(self, boot_ms: int) -> int:
        return 0 if self._counts_since_ms is None else boot_ms - self._counts_since_ms

"""Commands that submit, abort and finish requests. None affects clients' requests, so the version grows only if a node
becomes `left`."""

import msgspec

from ebla.model.identity import RequestId
from ebla.topology import keys
from ebla.topology.apply.draft import CommandHandlers, TopologyDraft
from ebla.topology.apply.nodes import end_before_start, note_error
from ebla.topology.commands import (
    AbortRequest,
    CancelRequest,
    FinishGlobalRequest,
    SubmitGlobalRequest,
    SubmitJoin,
    SubmitNodeRequest,
)
from ebla.topology.keys import Row
from ebla.topology.node_states import node_row
from ebla.topology.request_queue import JOINING_KINDS, standing_objections
from ebla.topology.snapshot import GlobalRequest, Node, NodeRequest, Snapshot
from ebla.topology.states import (
    EndCause,
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    TransitionState,
)
from ebla.topology.tablet_map import MOVES_PER_COMMIT_MAX
from ebla.topology.token_allocation import NUM_TOKENS_MAX

PENDING_REQUESTS_MAX = 256
SHARDS_MAX = 1024


def _submit_join(draft: TopologyDraft, command: SubmitJoin) -> None:
    node, request = command.node, command.request
    known = draft.base.nodes.get(node.host)
    if known is not None:
        draft.require(
            known.state is not NodeState.LEFT,
            f"{node.host} left this cluster and cannot come back; to join as a new one: ebla reset-node FOLDER",
        )
        draft.require(
            known.state is not NodeState.NONE,
            f"{node.host} has an unfinished join under another attempt; start over with ebla reset-node FOLDER",
        )
        draft.require(False, f"{node.host} is already a member of this cluster")
    draft.require(request.host == node.host, "a node joins for itself")
    draft.require(1 <= node.num_tokens <= NUM_TOKENS_MAX, f"num_tokens must be 1 to {NUM_TOKENS_MAX}")
    draft.require(1 <= node.shard_count <= SHARDS_MAX, f"a node has 1 to {SHARDS_MAX} shards")
    _require_room(draft, request)
    fresh = msgspec.structs.replace(
        node, state=NodeState.NONE, tokens=(), request=request.id, replaced=request.replaced
    )
    if request.kind is NodeRequestKind.REPLACE:
        fresh = _prepare_replace(draft, fresh, request)
    else:
        draft.require(request.kind is NodeRequestKind.JOIN, f"a new node cannot ask to {request.kind}")
        draft.require(request.replaced is None, "a join replaces nobody")
    draft.put_node(fresh)
    _store(draft, request)


def _prepare_replace(draft: TopologyDraft, node: Node, request: NodeRequest) -> Node:
    """Returns the row of the new node, which inherits the tokens."""
    replaced = draft.member(draft.found(request.replaced, "a replace must say whom it replaces"))
    _require_no_objection(draft, request, node)
    if replaced.request is not None:
        # A dead node cannot continue its own request.
        old = draft.base.node_requests[replaced.request]
        draft.end_request(old, f"cancelled: the node is being replaced by {node.host}", request.start_ms)
        draft.put_node(msgspec.structs.replace(replaced, request=None))
    draft.ignore(*request.excludes)
    return msgspec.structs.replace(node, num_tokens=replaced.num_tokens)


def _submit_node_request(draft: TopologyDraft, command: SubmitNodeRequest) -> None:
    request = command.request
    node = draft.member(request.host)
    draft.require(request.kind not in JOINING_KINDS, "a member cannot join again")
    _require_room(draft, request)
    _require_no_objection(draft, request)
    draft.ignore(*request.excludes)
    draft.put_node(msgspec.structs.replace(node, request=request.id, rebuild_source=request.rebuild_source))
    _store(draft, request)


def _require_no_objection(draft: TopologyDraft, request: NodeRequest, joining: Node | None = None) -> None:
    for objection in standing_objections(draft.base, request, joining):
        draft.require(False, objection.text(draft.base))


def _require_room(draft: TopologyDraft, request: NodeRequest | GlobalRequest) -> None:
    known = request.id in draft.base.node_requests or request.id in draft.base.global_requests
    draft.require(not known, f"request {request.id} was made before")
    waiting = open_requests(draft.base)
    draft.require(waiting < PENDING_REQUESTS_MAX, f"{waiting} requests are waiting; try again when some are done")


def open_requests(snapshot: Snapshot) -> int:
    return sum(each.is_open for each in snapshot.node_requests.values()) + len(snapshot.state.global_requests)


def _store(draft: TopologyDraft, request: NodeRequest | GlobalRequest) -> None:
    fresh: Row = msgspec.structs.replace(request, outcome=RequestOutcome.PENDING, error="", end_ms=None)
    draft.put_all({keys.request_key(request.id): fresh})
    draft.set_state()


def _submit_global_request(draft: TopologyDraft, command: SubmitGlobalRequest) -> None:
    request = command.request
    _require_room(draft, request)
    if request.kind is GlobalRequestKind.KEYSPACE_RF_CHANGE:
        _check_rf_change(draft, request)
    else:
        same = [each for each in _open_global(draft) if each.kind is request.kind]
        draft.require(not same, f"asked for already, by request {same[0].id if same else ''}: wait for that one")
    _store(draft, request)
    draft.set_state(global_requests=(*draft.now.state.global_requests, request.id))


def _open_global(draft: TopologyDraft) -> list[GlobalRequest]:
    return [draft.base.global_requests[each] for each in draft.base.state.global_requests]


def _check_rf_change(draft: TopologyDraft, request: GlobalRequest) -> None:
    keyspace = draft.found(draft.base.keyspaces.get(request.keyspace), f"there is no keyspace {request.keyspace}")
    draft.require(keyspace.on_tablets, f"keyspace {keyspace.name} is on vnodes; alter it directly")
    waiting = [each for each in _open_global(draft) if each.keyspace == keyspace.name]
    draft.require(not waiting, f"another change of keyspace {keyspace.name} is waiting")
    old, new = dict(keyspace.replication.factors), dict(request.new_factors)
    names = sorted({*old, *new})
    changed = sum(abs(new.get(name, 0) - old.get(name, 0)) for name in names)
    draft.require(changed == 1, "replication on tablets changes by one replica in one datacenter at a time")
    draft.require(sum(new.values()) > 0, "a keyspace needs a replica somewhere")
    moving = sum(
        tablets.tablet_count
        for table, tablets in draft.base.tablets.items()
        if draft.base.tables[table].keyspace == keyspace.name
    )
    fits = moving <= MOVES_PER_COMMIT_MAX
    draft.require(fits, f"all {moving} tablets of the keyspace start to move at once, and {MOVES_PER_COMMIT_MAX} may")
    for name in sorted(new):
        there = sum(node.datacenter == name for node in draft.base.nodes_in(NodeState.NORMAL))
        draft.require(new[name] <= there, f"datacenter {name} has {there} nodes, too few for {new[name]} replicas")


def _abort(draft: TopologyDraft, command: AbortRequest) -> None:
    error = EndCause.ABORTED.error(command.reason)
    if command.request in draft.base.state.global_requests:
        _abort_global(draft, command.request, error, command.now_ms)
        return
    request = _open_request(draft, command.request)
    if request.outcome is RequestOutcome.PENDING:
        _end_pending(draft, request, error, command.now_ms)
        return
    node = draft.base.node(request.host)
    _require_way_back(draft, request, node)
    note_error(draft, node, error)
    draft.set_state()


def _cancel(draft: TopologyDraft, command: CancelRequest) -> None:
    request = _open_request(draft, command.request)
    draft.require(request.outcome is RequestOutcome.PENDING, "the request runs, so it is not cancelled")
    _end_pending(draft, request, EndCause.CANCELLED.error(command.reason), command.now_ms)


def _open_request(draft: TopologyDraft, request_id: RequestId) -> NodeRequest:
    request = draft.found(draft.base.node_requests.get(request_id), f"there is no request {request_id}")
    said = f": {request.error}" if request.error else ""
    draft.require(request.is_open, f"the request is already {request.outcome}{said}")
    return request


def _end_pending(draft: TopologyDraft, request: NodeRequest, error: str, now_ms: int) -> None:
    node = draft.base.node(request.host)
    if node.state is NodeState.NONE:
        end_before_start(draft, node, error, now_ms)
        return
    draft.end_request(request, error, now_ms)
    draft.put_node(msgspec.structs.replace(node, request=None))
    draft.set_state()


def _require_way_back(draft: TopologyDraft, request: NodeRequest, node: Node) -> None:
    here, state = draft.base.transition, draft.base.state
    leaves = here is TransitionState.LEFT_TOKEN_RING and request.kind is NodeRequestKind.LEAVE
    # The commit that enters `left_token_ring` raises the fence to the version that all nodes read the new ring by.
    since = state.fence if leaves else state.transition_since
    switched = leaves or here is TransitionState.WRITE_BOTH_READ_NEW
    draft.require(not switched, f"too late: reads use the new ring since version {since}")
    row = node_row(node.state, here)
    ends = row is None or row.on_failure is None
    draft.require(not ends, f"the {request.kind} is being rolled back already: {request.error}")


def _abort_global(draft: TopologyDraft, request_id: RequestId, error: str, now_ms: int) -> None:
    """A CDC generation that is not committed yet is in use nowhere, so its state ends here; its data is dropped."""
    request = draft.base.global_requests[request_id]
    if request.outcome is RequestOutcome.RUNNING:
        committing = request.kind is GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS
        draft.require(committing, f"the {request.kind} is running and cannot be aborted")
        draft.step(transition=None, new_cdc_generation=None)
    _drop_from_queue(draft, request, error, now_ms)


def _finish_global(draft: TopologyDraft, command: FinishGlobalRequest) -> None:
    queue = draft.base.state.global_requests
    draft.require(bool(queue) and queue[0] == command.request, f"request {command.request} is not the one that runs")
    request = draft.base.global_requests[command.request]
    committing = draft.base.transition is TransitionState.COMMIT_CDC_GENERATION
    if committing and draft.base.node_in_transition() is None:
        draft.require(bool(command.error), "the generation is committed by its own command")
        draft.step(transition=None, new_cdc_generation=None)
    elif request.kind is GlobalRequestKind.KEYSPACE_RF_CHANGE and request.outcome is RequestOutcome.RUNNING:
        moving = any(
            tablets.any_transition and draft.base.tables[table].keyspace == request.keyspace
            for table, tablets in draft.base.tablets.items()
        )
        draft.require(not moving, f"tablets of keyspace {request.keyspace} are still moving")
    _drop_from_queue(draft, request, command.error, command.now_ms)


def _drop_from_queue(draft: TopologyDraft, request: GlobalRequest, error: str, now_ms: int) -> None:
    draft.end_request(request, error, now_ms)
    queue = tuple(each for each in draft.now.state.global_requests if each != request.id)
    draft.set_state(global_requests=queue)


REQUEST_COMMANDS: CommandHandlers = {
    SubmitJoin: _submit_join,
    SubmitNodeRequest: _submit_node_request,
    SubmitGlobalRequest: _submit_global_request,
    AbortRequest: _abort,
    CancelRequest: _cancel,
    FinishGlobalRequest: _finish_global,
}

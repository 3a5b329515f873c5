"""Commands that move nodes through the node table."""

import msgspec

from ebla.model.identity import HostId, SessionId
from ebla.topology import keys
from ebla.topology.apply.draft import CommandHandlers, TopologyDraft
from ebla.topology.commands import (
    AdvanceNode,
    ChooseTokens,
    CommitCdcGeneration,
    CompleteRequest,
    CreateCluster,
    FailDraining,
    RejectNode,
    RemoveNodeWithoutData,
    RollBackNode,
    StartNodeRequest,
)
from ebla.topology.node_states import REJECTED, REQUEST_STARTS, NodeAction, NodeRow, StatePair, node_row
from ebla.topology.routing.gained_ranges import hosts_without_rows
from ebla.topology.snapshot import GenerationId, Node, NodeRequest, Session, Snapshot, TopologyState
from ebla.topology.states import (
    EndCause,
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    SessionKind,
    TransitionState,
    UpgradeState,
)


def create_cluster(draft: TopologyDraft, command: CreateCluster) -> None:
    draft.require(not draft.base.nodes, "the cluster exists already")
    draft.require(draft.base.state == TopologyState(), "the cluster exists already")
    node = command.node
    draft.require(len(command.tokens) == node.num_tokens, f"{node.num_tokens} tokens are wanted")
    draft.put_node(
        msgspec.structs.replace(node, state=NodeState.NORMAL, tokens=tuple(sorted(command.tokens)), request=None)
    )
    commit_generation_data(draft, command.generation, command.timestamp_ms)
    draft.step(upgrade=UpgradeState.DONE, enabled_features=tuple(sorted(node.supported_features)))


def _start(draft: TopologyDraft, command: StartNodeRequest) -> None:
    request = draft.found(draft.base.node_requests.get(command.request), f"there is no request {command.request}")
    draft.require(request.outcome is RequestOutcome.PENDING, f"the request is already {request.outcome}")
    _require_rest(draft)
    node = draft.base.node(request.host)
    start = REQUEST_STARTS[request.kind]
    draft.require(
        node.state is start.source, f"{node.host} is {node.state}, and a {request.kind} starts at {start.source}"
    )
    if request.kind is NodeRequestKind.REPLACE:
        assert request.replaced is not None
        replaced = draft.base.node(request.replaced)
        draft.require(replaced.state is NodeState.NORMAL, f"{replaced.host} is {replaced.state} and cannot be replaced")
    draft.put_all({keys.request_key(request.id): _started(draft.base, request)})
    _enter(draft, node, start.target, command.session)


def _started(snapshot: Snapshot, request: NodeRequest) -> NodeRequest:
    """A remove goes on although excluded nodes gain ranges by it: of two dead nodes, each would forbid the removal of
    the other. Nobody can stream to them, so they are not counted as pending replicas."""
    excluded: tuple[HostId, ...] = ()
    if request.kind is NodeRequestKind.REMOVE:
        excluded = tuple(host for host in snapshot.state.ignored_nodes if host != request.host)
    return msgspec.structs.replace(request, outcome=RequestOutcome.RUNNING, excluded_at_start=excluded)


def _require_rest(draft: TopologyDraft) -> None:
    """INV-NODE-2: one operation at a time. Two would create write sets that no quorum argument covers."""
    transition = draft.base.transition
    draft.require(transition is None, f"the topology is in {transition}")
    busy = draft.base.node_in_transition()
    draft.require(busy is None, f"{busy.host if busy else ''} is {busy.state if busy else ''}")
    draft.require(not draft.base.any_tablet_transition, "tablets are in transition")


def _current(draft: TopologyDraft, host: HostId, leaving: TransitionState | None) -> tuple[Node, NodeRow]:
    """The node and its row, if they are what the sender of the command saw."""
    node = draft.base.nodes.get(host)
    draft.require(node is not None and node.in_transition, f"{host} is not in transition")
    assert node is not None
    here = draft.base.transition
    draft.require(here is leaving, f"the topology is in {here}, not in {leaving} any more")
    row = node_row(node.state, here)
    assert row is not None, "INV-NODE-3"
    return node, row


def _reject(draft: TopologyDraft, command: RejectNode) -> None:
    node = draft.found(draft.base.nodes.get(command.host), f"{command.host} is not known")
    row = node_row(node.state, draft.base.transition) if node.in_transition else None
    early = node.state is NodeState.NONE or (row is not None and row.may_reject)
    draft.require(early, f"{node.host} is {node.state} and can no longer be rejected")
    error = EndCause.REJECTED.error(command.reason)
    if node.state is NodeState.NONE:
        end_before_start(draft, node, error, command.now_ms)
        return
    note_error(draft, node, error)
    _finish(draft, node, REJECTED, command.now_ms)


def end_before_start(draft: TopologyDraft, node: Node, error: str, now_ms: int) -> None:
    """A node in `none` becomes `left`. Others may be in transition meanwhile: the topology stays where it is."""
    assert node.state is NodeState.NONE
    draft.step()
    _end_operation(draft, node, error, now_ms)
    _become_left(draft, node.host, now_ms)


def _remove_without_data(draft: TopologyDraft, command: RemoveNodeWithoutData) -> None:
    """Without a table, tokens have no data: nothing has to be moved before they go."""
    node = draft.member(command.host)
    draft.require(node.state is NodeState.NORMAL, f"{node.host} is {node.state}, not normal")
    draft.require(not draft.base.tables, f"the cluster has {len(draft.base.tables)} tables, and it may hold their rows")
    has_others = any(other.host != node.host for other in draft.base.token_owners())
    draft.require(has_others, "no other node owns tokens")
    _require_rest(draft)
    draft.step()
    _become_left(draft, node.host, command.now_ms)


def _choose_tokens(draft: TopologyDraft, command: ChooseTokens) -> None:
    node, row = _current(draft, command.host, TransitionState.JOIN_GROUP0)
    assert row.action is NodeAction.ADMIT
    tokens = tuple(sorted(command.tokens))
    if node.state is NodeState.REPLACING:
        assert node.replaced is not None
        draft.require(
            tokens == draft.base.node(node.replaced).tokens, "a replacing node inherits the tokens it replaces"
        )
        draft.require(command.generation is None, "a replace makes no CDC generation: the tokens stay the same")
    else:
        _require_free(draft, node, tokens)
        generation = draft.found(command.generation, "a join needs a CDC generation")
        require_complete(draft, generation)
        draft.set_state(new_cdc_generation=generation)
    _enter(draft, msgspec.structs.replace(node, tokens=tokens), row.next, None)


def _require_free(draft: TopologyDraft, node: Node, tokens: tuple[int, ...]) -> None:
    """INV-NODE-4: a token has one owner."""
    draft.require(len(tokens) == node.num_tokens, f"{node.num_tokens} tokens are wanted, not {len(tokens)}")
    draft.require(len(set(tokens)) == len(tokens), "a token stands twice")
    taken = {token: other.host for other in draft.base.members() for token in other.tokens}
    clash = next((token for token in tokens if token in taken), None)
    draft.require(clash is None, f"token {clash} belongs to {taken.get(clash) if clash is not None else ''}")


def _commit_generation(draft: TopologyDraft, command: CommitCdcGeneration) -> None:
    node = draft.base.node_in_transition()
    row = node_row(node.state if node else None, draft.base.transition)
    committing = row is not None and row.action is NodeAction.COMMIT_GENERATION
    draft.require(committing, f"no CDC generation is to be committed in {draft.base.transition}")
    assert row is not None
    generation = draft.base.state.new_cdc_generation
    assert generation is not None, "commit_cdc_generation names its generation"
    draft.raise_fence(command.fence)
    draft.require_barrier(draft.base.state.transition_since, f"{draft.base.transition}")
    commit_generation_data(draft, generation, command.timestamp_ms)
    if node is not None:
        draft.set_state(new_cdc_generation=None)
        _enter(draft, node, row.next, command.session)
        return
    head = draft.base.global_requests[draft.base.state.global_requests[0]]
    draft.end_request(head, "", command.now_ms)
    draft.step(transition=None, new_cdc_generation=None, global_requests=draft.base.state.global_requests[1:])


def require_complete(draft: TopologyDraft, generation: GenerationId) -> None:
    head = draft.found(draft.base.cdc_generations.get(generation), f"CDC generation {generation} has no data")
    draft.require(head.timestamp_ms is None, f"CDC generation {generation} is committed already")
    missing = [number for number in range(head.part_count) if (generation, number) not in draft.base.cdc_parts]
    draft.require(not missing, f"CDC generation {generation} lacks {len(missing)} of {head.part_count} parts")


def commit_generation_data(draft: TopologyDraft, generation: GenerationId, timestamp_ms: int) -> None:
    require_complete(draft, generation)
    last = max((each.timestamp_ms or 0 for each in draft.base.cdc_generations.values()), default=0)
    draft.require(timestamp_ms > last, f"a generation's timestamp must be later than {last}, the last one's")
    head = draft.base.cdc_generations[generation]
    draft.put_all({keys.generation_key(generation): msgspec.structs.replace(head, timestamp_ms=timestamp_ms)})


def _advance(draft: TopologyDraft, command: AdvanceNode) -> None:
    node, row = _current(draft, command.host, command.leaving)
    special = row.action in (NodeAction.ADMIT, NodeAction.COMMIT_GENERATION)
    draft.require(not special, f"{command.leaving} ends by a command of its own")
    draft.raise_fence(command.fence)
    if row.barrier:
        draft.require_barrier(draft.base.state.transition_since, f"{command.leaving}")
    if row.on_failure is not None:
        # An abort and the commit that goes on exclude each other: both rewrite the state row.
        error = _error_of(draft.base, node)
        draft.require(not error, f"it was given up and must be rolled back: {error}")
    if row.action in (NodeAction.DRAIN_TABLETS, NodeAction.MOVE_TABLETS):
        draft.require(not draft.base.any_tablet_transition, "tablets are still in transition")
    if row.action is NodeAction.DRAIN_TABLETS:
        # INV-NODE-7: after draining, a leaving node has no tablets.
        stays = node.state is NodeState.REPLACING or not draft.base.has_tablets(node.host)
        draft.require(stays, f"{node.host} still has tablets")
    request = draft.base.request_of(node)
    if row.action is NodeAction.STREAM and request is not None:
        streamed = msgspec.structs.replace(
            request,
            streamed_bytes=command.streamed_bytes,
            streamed_ranges=command.streamed_ranges,
            skipped=command.skipped,
        )
        draft.put_all({keys.request_key(request.id): streamed})
    if row.next.transition is None:
        _finish(draft, node, row.next, command.now_ms)
    else:
        _enter(draft, node, row.next, command.session)


def _roll_back(draft: TopologyDraft, command: RollBackNode) -> None:
    node, row = _current(draft, command.host, command.leaving)
    no_way = f"there is no way back from {command.leaving}: it is repeated until it succeeds"
    there = draft.found(row.on_failure, no_way)
    # INV-TABL-3: no tablet may be in transition in `rollback_to_normal` or `left_token_ring`.
    draft.require(
        not draft.base.any_tablet_transition, "tablets are still in transition; they must come to an end first"
    )
    note_error(draft, node, EndCause.ROLLED_BACK.error(command.reason))
    draft.set_state(new_cdc_generation=None)
    if there.transition is None:
        _finish(draft, node, there, command.now_ms)
    else:
        _enter(draft, node, there, None)


def _fail_draining(draft: TopologyDraft, command: FailDraining) -> None:
    node, row = _current(draft, command.host, TransitionState.TABLET_DRAINING)
    draft.require(row.action is NodeAction.DRAIN_TABLETS, "nothing is being drained")
    draft.require(not _error_of(draft.base, node), "it is being given up already")
    note_error(draft, node, f"draining failed: {command.reason}")
    draft.set_state()


def _complete_request(draft: TopologyDraft, command: CompleteRequest) -> None:
    node, _ = _current(draft, command.host, TransitionState.LEFT_TOKEN_RING)
    draft.require(node.request is not None, "the request is answered already")
    _end_operation(draft, node, "", command.now_ms)
    draft.set_state()


def _error_of(snapshot: Snapshot, node: Node) -> str:
    request = snapshot.request_of(node)
    return "" if request is None else request.error


def note_error(draft: TopologyDraft, node: Node, error: str) -> None:
    """The first error is the cause; later ones are its consequences."""
    request = draft.now.request_of(node)
    if request is not None and not request.error:
        draft.put_all({keys.request_key(request.id): msgspec.structs.replace(request, error=error)})


def _enter(draft: TopologyDraft, node: Node, place: StatePair, session: SessionId | None) -> None:
    """Enters a row that is not final. INV-NODE-9: the session of the old row closes, that of the new row opens."""
    assert place.state is not None
    row = node_row(place.state, place.transition)
    assert row is not None, "INV-NODE-3"
    tokens = () if place.transition is TransitionState.LEFT_TOKEN_RING else node.tokens
    draft.put_node(msgspec.structs.replace(node, state=place.state, tokens=tokens))
    draft.close_session(draft.base.state.session)
    opened = None
    if row.session:
        assert node.request is not None
        session = draft.found(session, f"{place.transition or place.state} needs a session")
        draft.open_session(Session(id=session, kind=SessionKind.REQUEST, request=node.request))
        opened = session
    draft.step(transition=place.transition, session=opened)


def _finish(draft: TopologyDraft, node: Node, place: StatePair, now_ms: int) -> None:
    """Ends an operation: sets the node's final state, answers the request, puts the topology at rest."""
    assert place.state in (NodeState.NORMAL, NodeState.LEFT)
    draft.close_session(draft.base.state.session)
    draft.step(transition=None, session=None)
    if place.state is NodeState.LEFT and node.state is NodeState.REMOVING:
        mark_incomplete(draft, hosts_without_rows(draft.base))  # first: an incomplete node stays excluded
    _end_operation(draft, node, "", now_ms)
    if place.state is NodeState.LEFT:
        _become_left(draft, node.host, now_ms)
        return
    if node.state is NodeState.REPLACING:
        assert node.replaced is not None
        _become_left(draft, node.replaced, now_ms)
    settled = msgspec.structs.replace(draft.now.node(node.host), state=NodeState.NORMAL, rebuild_source=None)
    draft.put_node(settled)


def _end_operation(draft: TopologyDraft, node: Node, error: str, now_ms: int) -> None:
    """Answers the node's request, with its recorded error if there is one. Idempotent.

    INV-NODE-6: a node names its request exactly while that is open.
    """
    request = draft.now.request_of(draft.now.node(node.host))
    if request is None:
        return
    draft.end_request(request, error or request.error, now_ms)
    draft.put_node(msgspec.structs.replace(draft.now.node(node.host), request=None))


def mark_incomplete(draft: TopologyDraft, hosts: tuple[HostId, ...]) -> None:
    """INV-NODE-23: they become replicas of ranges whose rows nobody streamed to them."""
    for host in hosts:
        draft.put_node(msgspec.structs.replace(draft.now.node(host), is_incomplete=True))


def _become_left(draft: TopologyDraft, host: HostId, now_ms: int) -> None:
    """INV-NODE-1: the row is never deleted; it has no tokens and no request."""
    node = draft.now.node(host)
    if node.request is not None:
        draft.end_request(draft.now.node_requests[node.request], "cancelled: the node left", now_ms)
    draft.put_node(msgspec.structs.replace(node, state=NodeState.LEFT, tokens=(), request=None))
    draft.forget_ignored(host)


NODE_COMMANDS: CommandHandlers = {
    StartNodeRequest: _start,
    RejectNode: _reject,
    RemoveNodeWithoutData: _remove_without_data,
    ChooseTokens: _choose_tokens,
    CommitCdcGeneration: _commit_generation,
    AdvanceNode: _advance,
    RollBackNode: _roll_back,
    FailDraining: _fail_draining,
    CompleteRequest: _complete_request,
}

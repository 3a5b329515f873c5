"""Commands that move tablets through the stage table."""

from typing import assert_never

import msgspec

from ebla.model.identity import HostId, TableId
from ebla.topology import keys
from ebla.topology.apply.draft import CommandHandlers, TopologyDraft
from ebla.topology.apply.resize import tables_to_finalize
from ebla.topology.commands import (
    AdvanceTablets,
    LeaveMigrationTrack,
    RecordRepair,
    StartMoves,
    StartRfChange,
    TabletAdvance,
    TabletMove,
)
from ebla.topology.keys import Row, chunk_row
from ebla.topology.node_states import TRANSITIONS_WITH_TABLETS_MOVING
from ebla.topology.request_queue import draining_hosts
from ebla.topology.snapshot import Replication, Session, Snapshot
from ebla.topology.states import (
    GlobalRequestKind,
    NodeState,
    RequestOutcome,
    SessionKind,
    TabletStage,
    TransitionKind,
    TransitionState,
)
from ebla.topology.tablet_map import (
    CHUNK_BITS,
    MOVES_PER_COMMIT_MAX,
    STEPS_PER_COMMIT_MAX,
    ReplicaSet,
    TabletMap,
    TabletTransition,
)
from ebla.topology.tablet_stages import (
    FIRST_STAGE,
    STAGES,
    Ending,
    leaving_replicas,
    pending_replicas,
    stage_after_failure,
    stage_row,
)


def given_up_hosts(snapshot: Snapshot) -> frozenset[HostId]:
    """Nodes that will not return with what they were sent: ignored by the operator, or left. Queried, never
    iterated."""
    left = (node.host for node in snapshot.nodes_in(NodeState.LEFT))
    return frozenset((*snapshot.state.ignored_nodes, *left))


def _start_moves(draft: TopologyDraft, command: StartMoves) -> None:
    draft.require(bool(command.moves), "no moves")
    _require_track(draft)
    for move in command.moves:
        draft.tablets_of(move.table)
        _check_move(draft, move, draft.base.replication_of(move.table))
        if draft.base.transition is TransitionState.TABLET_DRAINING:
            _check_drains(draft, move)
    _enter_moves(draft, command.moves)


def _require_track(draft: TopologyDraft) -> None:
    """Tablets start to move at rest (which enters `tablet_migration`), in `tablet_migration`, or while a node is
    drained."""
    here = draft.base.transition
    node = draft.base.node_in_transition()
    if here is TransitionState.TABLET_DRAINING:
        assert node is not None
        request = draft.base.request_of(node)
        given_up = request is not None and bool(request.error)
        draft.require(not given_up, "the operation is being rolled back: no new moves")
        return
    draft.require(here in (None, TransitionState.TABLET_MIGRATION), f"no tablet may start to move in {here}")
    draft.require(node is None, f"{node.host if node else ''} is in transition")


def _check_drains(draft: TopologyDraft, move: TabletMove) -> None:
    leaving = leaving_replicas(draft.base.tablets[move.table].replicas(move.tablet), move.new_replicas)
    drained = draining_hosts(draft.base)
    off = bool(leaving) and all(replica.host in drained for replica in leaving)
    draft.require(off, f"while a node is drained, tablet {move.tablet} may only move off one that goes")


def _check_move(draft: TopologyDraft, move: TabletMove, wanted: Replication) -> None:
    tablets = draft.tablets_of(move.table)
    draft.require(0 <= move.tablet < tablets.tablet_count, f"table {move.table} has no tablet {move.tablet}")
    busy = tablets.transition(move.tablet) is not None
    draft.require(not busy, f"tablet {move.tablet} is in transition (INV-TABL-2)")
    old = tablets.replicas(move.tablet)
    pending, leaving = pending_replicas(old, move.new_replicas), leaving_replicas(old, move.new_replicas)
    one_each = len(pending) == 1 and len(leaving) == 1
    match move.kind:
        case TransitionKind.MIGRATION:
            draft.require(one_each, "a migration moves exactly one replica")
            draft.require(pending[0].host != leaving[0].host, "within a node it is an intranode migration")
            gone = leaving[0].host in given_up_hosts(draft.base)
            draft.require(not gone, f"{leaving[0].host} is gone: its replica is rebuilt, not migrated")
        case TransitionKind.INTRANODE_MIGRATION:
            draft.require(one_each, "an intranode migration moves exactly one replica")
            draft.require(pending[0].host == leaving[0].host, "an intranode migration stays on its node")
        case TransitionKind.REBUILD:
            draft.require(1 <= len(pending) + len(leaving) <= 2, "a rebuild changes one replica")
            draft.require(len(pending) <= 1 and len(leaving) <= 1, "a rebuild changes one replica")
        case _:
            assert_never(move.kind)
    _check_target(draft, move, pending)
    before, after = _distance(draft.base, wanted, old), _distance(draft.base, wanted, move.new_replicas)
    closer = after == before if pending and leaving else after < before
    draft.require(closer, "the move leaves replicas per datacenter further from what the keyspace asks for")


def _check_target(draft: TopologyDraft, move: TabletMove, pending: ReplicaSet) -> None:
    distinct = len({replica.host for replica in move.new_replicas}) == len(move.new_replicas)
    draft.require(distinct, "a host has at most one replica of a tablet")
    draft.require(bool(move.new_replicas), "a tablet keeps a replica")
    for replica in pending:
        node = draft.base.nodes.get(replica.host)
        draft.require(node is not None and node.state is NodeState.NORMAL, f"{replica.host} takes no tablets")
        assert node is not None
        draft.require(node.host not in draft.base.state.ignored_nodes, f"{node.host} is ignored and takes no tablets")
        draft.require(0 <= replica.shard < node.shard_count, f"{node.host} has no shard {replica.shard}")


def _distance(snapshot: Snapshot, wanted: Replication, replicas: ReplicaSet) -> int:
    """The distance of the replicas per datacenter from the requested factors."""
    counts = dict(wanted.factors)
    for replica in replicas:
        datacenter = snapshot.node(replica.host).datacenter
        counts[datacenter] = counts.get(datacenter, 0) - 1
    return sum(abs(count) for count in counts.values())


def _enter_moves(draft: TopologyDraft, moves: tuple[TabletMove, ...]) -> None:
    few = len(moves) <= MOVES_PER_COMMIT_MAX
    draft.require(few, f"{len(moves)} moves do not fit one commit, which takes {MOVES_PER_COMMIT_MAX}")
    rows: dict[str, Row | None] = {}
    for move in moves:
        key = keys.transition_key(move.table, move.tablet)
        draft.require(key not in rows, f"tablet {move.tablet} is named twice (INV-TABL-2)")
        rows[key] = TabletTransition(
            kind=move.kind, stage=FIRST_STAGE, new_replicas=move.new_replicas, since=draft.next_version
        )
    draft.put_all(rows)
    if draft.base.transition is None:
        draft.step(transition=TransitionState.TABLET_MIGRATION)
    else:
        draft.step()


def _start_rf_change(draft: TopologyDraft, command: StartRfChange) -> None:
    request = draft.next_global_request(command.request)
    draft.require(request.kind is GlobalRequestKind.KEYSPACE_RF_CHANGE, f"the request is a {request.kind}")
    draft.require(request.outcome is RequestOutcome.PENDING, "the request is already running")
    draft.require(draft.base.transition is None, f"the topology is in {draft.base.transition}")
    draft.require(draft.base.node_in_transition() is None, "a node is in transition")
    keyspace = draft.base.keyspaces[request.keyspace]
    wanted = Replication(keyspace.replication.strategy, tuple(sorted(request.new_factors)))
    for move in command.moves:
        draft.require(move.kind is TransitionKind.REBUILD, "a change of replication rebuilds")
        _check_move(draft, move, wanted)
    named = {(move.table, move.tablet) for move in command.moves}
    left_out = [
        table
        for table, tablets in draft.base.tablets.items()
        if draft.base.tables[table].keyspace == keyspace.name
        for number in range(tablets.tablet_count)
        if (table, number) not in named and _distance(draft.base, wanted, tablets.replicas(number))
    ]
    draft.require(not left_out, f"tablets of table {left_out[0] if left_out else ''} were left out")
    draft.put_all(
        {
            keys.keyspace_key(keyspace.name): msgspec.structs.replace(keyspace, replication=wanted),
            keys.request_key(request.id): msgspec.structs.replace(request, outcome=RequestOutcome.RUNNING),
        }
    )
    if command.moves:
        _enter_moves(draft, command.moves)
    else:
        draft.step()


def _advance_tablets(draft: TopologyDraft, command: AdvanceTablets) -> None:
    draft.require(bool(command.steps), "no steps")
    few = len(command.steps) <= STEPS_PER_COMMIT_MAX
    draft.require(few, f"{len(command.steps)} steps do not fit one commit, which takes {STEPS_PER_COMMIT_MAX}")
    assert draft.base.transition in TRANSITIONS_WITH_TABLETS_MOVING or not draft.base.any_tablet_transition
    draft.raise_fence(command.fence)
    given_up = given_up_hosts(draft.base)
    rows: dict[str, Row | None] = {}
    maps: dict[TableId, TabletMap] = {}
    for step in command.steps:
        tablets = maps.get(step.table) or draft.tablets_of(step.table)
        key = keys.transition_key(step.table, step.tablet)
        draft.require(key not in rows, f"tablet {step.tablet} is named twice")
        transition = _transition_left(draft, tablets, step)
        target = _target(draft, tablets, transition, step, given_up)
        if transition.session is not None:
            rows[keys.session_key(transition.session)] = None
        if target is not None:
            entered = _rows_of_stage(draft, step, transition, target)
            shared = next((each for each in entered if each in rows), None)
            draft.require(shared is None, f"two tablets would share {shared}: each stage has a session of its own")
            rows.update(entered)
        else:
            rows[key] = None
            if stage_row(transition).ending is Ending.REPLICAS_BECOME_NEXT:
                tablets = tablets.with_replicas(step.tablet, transition.new_replicas)
                maps[step.table] = tablets
                index = step.tablet >> CHUNK_BITS
                rows[keys.chunk_key(step.table, index)] = chunk_row(tablets.chunks[index])
    draft.put_all(rows)
    draft.step()


def _transition_left(draft: TopologyDraft, tablets: TabletMap, step: TabletAdvance) -> TabletTransition:
    known = 0 <= step.tablet < tablets.tablet_count
    moving = tablets.transition(step.tablet) if known else None
    transition = draft.found(moving, f"tablet {step.tablet} is not in transition")
    same = transition.stage is step.leaving
    draft.require(same, f"tablet {step.tablet} is in {transition.stage}, not in {step.leaving} any more")
    return transition


def _target(
    draft: TopologyDraft,
    tablets: TabletMap,
    transition: TabletTransition,
    step: TabletAdvance,
    given_up: frozenset[HostId],
) -> TabletStage | None:
    """The stage to enter; None: the transition ends."""
    if step.failed:
        replicas = tablets.replicas(step.tablet)
        back = stage_after_failure(replicas, transition, given_up, hopeless=step.hopeless)
        draft.require(back is not None, f"{transition.stage} is repeated: no replica it needs was given up")
        return back
    row = stage_row(transition)
    if row.barrier:
        draft.require_barrier(transition.since, f"{transition.stage} of tablet {step.tablet}")
    return row.next


def _rows_of_stage(
    draft: TopologyDraft, step: TabletAdvance, transition: TabletTransition, stage: TabletStage
) -> dict[str, Row | None]:
    opened = step.session if STAGES[transition.kind, stage].session else None
    entered = msgspec.structs.replace(transition, stage=stage, session=opened, since=draft.next_version)
    rows: dict[str, Row | None] = {keys.transition_key(step.table, step.tablet): entered}
    if opened is not None:
        draft.require(opened not in draft.base.sessions, f"session {opened} is already open")
        session = Session(id=opened, kind=SessionKind.STAGE, table=step.table, tablet=step.tablet)
        rows[keys.session_key(opened)] = session
    return rows


def _leave_track(draft: TopologyDraft, _command: LeaveMigrationTrack) -> None:
    on_track = draft.base.transition is TransitionState.TABLET_MIGRATION
    draft.require(on_track, f"the topology is in {draft.base.transition}")
    draft.require(draft.base.node_in_transition() is None, "a rolled back node is still to be settled")
    draft.require(not draft.base.any_tablet_transition, "tablets are still in transition")
    waiting = bool(tables_to_finalize(draft.base))
    draft.step(transition=TransitionState.TABLET_SPLIT_FINALIZATION if waiting else None)


def _record_repair(draft: TopologyDraft, command: RecordRepair) -> None:
    tablets = draft.tablets_of(command.table)
    touched: dict[int, None] = {}
    for number, time_ms in command.tablets:
        draft.require(0 <= number < tablets.tablet_count, f"table {command.table} has no tablet {number}")
        moving = tablets.transition(number) is not None
        draft.require(not moving, f"tablet {number} is in transition: its repair does not count")
        later = time_ms >= tablets.repair_time_ms(number)
        draft.require(later, f"tablet {number} was repaired later than that")
        tablets = tablets.with_repair_time(number, time_ms)
        touched[number >> CHUNK_BITS] = None
    draft.put_all({keys.chunk_key(command.table, index): chunk_row(tablets.chunks[index]) for index in touched})
    draft.set_state()


TABLET_COMMANDS: CommandHandlers = {
    StartMoves: _start_moves,
    StartRfChange: _start_rf_change,
    AdvanceTablets: _advance_tablets,
    LeaveMigrationTrack: _leave_track,
    RecordRepair: _record_repair,
}

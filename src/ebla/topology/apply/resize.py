"""Commands that resize tables: a decision, the replicas' readiness, and the new map."""

from dataclasses import replace
from typing import assert_never

from ebla.model.identity import TableId
from ebla.topology import keys
from ebla.topology.apply.draft import TopologyDraft
from ebla.topology.apply.streams import with_new_stream_set
from ebla.topology.commands import (
    DecideResize,
    FinalizeResize,
    ReportResizeReady,
    ResizeCommand,
    StartResizeFinalization,
)
from ebla.topology.keys import Row, chunk_row, map_row
from ebla.topology.resize import decided, finalized, is_merge_ready
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import ResizeType, TransitionState, UpgradeState
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, Resize, TabletMap


def apply_resize(draft: TopologyDraft, command: ResizeCommand) -> None:
    draft.require(draft.base.state.upgrade is UpgradeState.DONE, "the topology is not in group 0 yet: upgrade first")
    match command:
        case DecideResize():
            _decide_resize(draft, command)
        case ReportResizeReady():
            _report_ready(draft, command)
        case StartResizeFinalization():
            _start_finalization(draft)
        case FinalizeResize():
            _finalize(draft, command)
        case _:
            assert_never(command)


def tables_to_finalize(snapshot: Snapshot) -> tuple[TableId, ...]:
    """Tables whose new map may be committed, by id. A merge may become unready: a later move can separate siblings."""
    return tuple(table for table in sorted(snapshot.tablets) if _may_finalize(snapshot.tablets[table]))


def _may_finalize(tablets: TabletMap) -> bool:
    if not tablets.resize.ready:
        return False
    return tablets.resize.kind is ResizeType.SPLIT or is_merge_ready(tablets)


def _decide_resize(draft: TopologyDraft, command: DecideResize) -> None:
    tablets = _map_of(draft, command.table)
    finalizing = draft.base.transition is TransitionState.TABLET_SPLIT_FINALIZATION
    draft.require(not finalizing, "a resize is being finalised")
    draft.require(command.kind is not tablets.resize.kind, f"the decision is already {command.kind}")
    merge_of_one = command.kind is ResizeType.MERGE and tablets.tablet_count == 1
    draft.require(not merge_of_one, "a single tablet has nothing to merge with")
    at_limit = command.kind is ResizeType.SPLIT and tablets.tablet_count >= TABLETS_PER_COMMIT_MAX
    draft.require(not at_limit, f"a table has at most {TABLETS_PER_COMMIT_MAX} tablets")
    _put_resize(draft, tablets, decided(tablets.resize, command.kind))


def _report_ready(draft: TopologyDraft, command: ReportResizeReady) -> None:
    tablets = _map_of(draft, command.table)
    current = tablets.resize.number == command.number and tablets.resize.kind is not ResizeType.NONE
    draft.require(current, f"resize {command.number} is not the decision that stands ({tablets.resize.number})")
    draft.require(not tablets.resize.ready, "it is known to be ready")
    apart = tablets.resize.kind is ResizeType.MERGE and not is_merge_ready(tablets)
    draft.require(not apart, "siblings have different replicas, so they cannot be merged yet")
    _put_resize(draft, tablets, Resize(tablets.resize.kind, tablets.resize.number, ready=True))


def _map_of(draft: TopologyDraft, table: TableId) -> TabletMap:
    tablets = draft.base.tablets.get(table)
    draft.require(tablets is not None, f"table {table} has no tablets")
    assert tablets is not None
    return tablets


def _put_resize(draft: TopologyDraft, tablets: TabletMap, resize: Resize) -> None:
    draft.put_all({keys.map_key(tablets.table): map_row(tablets.with_resize(resize))})
    draft.step()


def _start_finalization(draft: TopologyDraft) -> None:
    draft.require(draft.base.transition is None, f"the topology is in {draft.base.transition}")
    draft.require(draft.base.node_in_transition() is None, "a node is in transition")
    draft.require(bool(tables_to_finalize(draft.base)), "no resize is ready")
    draft.step(transition=TransitionState.TABLET_SPLIT_FINALIZATION)


def _finalize(draft: TopologyDraft, command: FinalizeResize) -> None:
    here = draft.base.transition
    draft.require(here is TransitionState.TABLET_SPLIT_FINALIZATION, f"the topology is in {here}")
    draft.raise_fence(command.fence)
    draft.require_barrier(draft.base.state.transition_since, f"{here}")
    ready = tables_to_finalize(draft.base)
    now = _fitting_one_commit(draft.base, ready)
    rows: dict[str, Row | None] = {}
    for table in now:
        old = draft.base.tablets[table]
        new = finalized(old)
        if new.streams:
            new = replace(new, streams=with_new_stream_set(draft, new, command.streams))
        rows[keys.map_key(table)] = map_row(new)
        for index, chunk in enumerate(new.chunks):
            rows[keys.chunk_key(table, index)] = chunk_row(chunk.replicas, chunk.repair_times_ms)
        for index in range(len(new.chunks), len(old.chunks)):
            rows[keys.chunk_key(table, index)] = None
    draft.put_all(rows)
    draft.step(transition=None if now == ready else here)


def _fitting_one_commit(snapshot: Snapshot, ready: tuple[TableId, ...]) -> tuple[TableId, ...]:
    """The first table, and those after it while all their new tablets are no more than one table may have."""
    room = TABLETS_PER_COMMIT_MAX
    fitting: list[TableId] = []
    for table in ready:
        old = snapshot.tablets[table]
        room -= old.tablet_count * 2 if old.resize.kind is ResizeType.SPLIT else old.tablet_count // 2
        if fitting and room < 0:
            break
        fitting.append(table)
    return tuple(fitting)

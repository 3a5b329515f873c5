"""Commands that resize tables: a decision, the replicas' readiness, the new map, and its change streams.

A table on tablets whose changes are captured gets a new set of streams when capture is turned on and when the tablet
count changes, so that every tablet has a stream (INV-TABL-4).
"""

from dataclasses import replace

from ebla.model.identity import TableId
from ebla.topology import keys
from ebla.topology.apply.draft import CommandHandlers, TopologyDraft
from ebla.topology.cdc_generations import RANDOM_BITS
from ebla.topology.commands import (
    DecideResize,
    DropStreamSets,
    FinalizeResize,
    NewStreams,
    ReportResizeReady,
    StartResizeFinalization,
)
from ebla.topology.keys import Row, map_row, tablet_rows
from ebla.topology.resize import decided, finalized, is_merge_ready
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import ResizeType, TransitionState
from ebla.topology.tablet_map import STREAM_SETS_MAX, TABLETS_PER_COMMIT_MAX, Resize, TabletMap, TabletStreams


def tables_to_finalize(snapshot: Snapshot) -> tuple[TableId, ...]:
    """Tables whose new map may be committed, by id. A merge may become unready: a later move can separate siblings."""
    return tuple(table for table in sorted(snapshot.tablets) if _may_finalize(snapshot.tablets[table]))


def _may_finalize(tablets: TabletMap) -> bool:
    if not tablets.resize.ready:
        return False
    return tablets.resize.kind is ResizeType.SPLIT or is_merge_ready(tablets)


def _decide_resize(draft: TopologyDraft, command: DecideResize) -> None:
    tablets = draft.tablets_of(command.table)
    finalizing = draft.base.transition is TransitionState.TABLET_SPLIT_FINALIZATION
    draft.require(not finalizing, "a resize is being finalised")
    draft.require(command.kind is not tablets.resize.kind, f"the decision is already {command.kind}")
    merge_of_one = command.kind is ResizeType.MERGE and tablets.tablet_count == 1
    draft.require(not merge_of_one, "a single tablet has nothing to merge with")
    at_limit = command.kind is ResizeType.SPLIT and tablets.tablet_count >= TABLETS_PER_COMMIT_MAX
    draft.require(not at_limit, f"a table has at most {TABLETS_PER_COMMIT_MAX} tablets")
    _put_resize(draft, tablets, decided(tablets.resize, command.kind))


def _report_ready(draft: TopologyDraft, command: ReportResizeReady) -> None:
    tablets = draft.tablets_of(command.table)
    current = tablets.resize.number == command.number and tablets.resize.kind is not ResizeType.NONE
    draft.require(current, f"resize {command.number} is not the decision that stands ({tablets.resize.number})")
    draft.require(not tablets.resize.ready, "it is known to be ready")
    apart = tablets.resize.kind is ResizeType.MERGE and not is_merge_ready(tablets)
    draft.require(not apart, "siblings have different replicas, so they cannot be merged yet")
    _put_resize(draft, tablets, Resize(tablets.resize.kind, tablets.resize.number, ready=True))


def _put_resize(draft: TopologyDraft, tablets: TabletMap, resize: Resize) -> None:
    draft.put_all({keys.map_key(tablets.table): map_row(replace(tablets, resize=resize))})
    draft.step()


def _start_finalization(draft: TopologyDraft, _command: StartResizeFinalization) -> None:
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
        rows.update(tablet_rows(new))
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


def with_new_stream_set(draft: TopologyDraft, tablets: TabletMap, new: NewStreams | None) -> tuple[TabletStreams, ...]:
    """The sets of the table plus a new one for its current tablet count. The oldest set is dropped at the limit: its
    records are many resizes old."""
    before = tablets.streams
    new = draft.found(new, f"changes of table {tablets.table} are captured: its tablets need new streams")
    draft.require(0 <= new.mark < 1 << RANDOM_BITS, f"a mark has {RANDOM_BITS} bits")
    used = any(each.mark == new.mark for each in before)
    draft.require(not used, f"the mark {new.mark} belongs to an earlier set of table {tablets.table}")
    last_ms = before[-1].timestamp_ms if before else 0
    draft.require(new.timestamp_ms > last_ms, f"new streams must be later than {last_ms}, the last set's timestamp")
    return (*before, TabletStreams(new.timestamp_ms, tablets.tablet_count, new.mark))[-STREAM_SETS_MAX:]


def drop_stream_sets(draft: TopologyDraft, command: DropStreamSets) -> None:
    tablets = draft.tablets_of(command.table)
    known = any(each.timestamp_ms == command.oldest_kept_ms for each in tablets.streams)
    draft.require(known, f"table {command.table} has no streams from {command.oldest_kept_ms} on")
    kept = tuple(each for each in tablets.streams if each.timestamp_ms >= command.oldest_kept_ms)
    draft.put_all({keys.map_key(command.table): map_row(replace(tablets, streams=kept))})
    draft.set_state()


RESIZE_COMMANDS: CommandHandlers = {
    DecideResize: _decide_resize,
    ReportResizeReady: _report_ready,
    StartResizeFinalization: _start_finalization,
    FinalizeResize: _finalize,
}

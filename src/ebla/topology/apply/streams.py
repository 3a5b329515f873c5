"""The change streams of tables on tablets: a new set when capture is turned on and when the tablet count changes, so
that every tablet has a stream (INV-TABL-4)."""

from dataclasses import replace

from ebla.topology import keys
from ebla.topology.apply.draft import TopologyDraft
from ebla.topology.cdc_generations import RANDOM_BITS
from ebla.topology.commands import DropStreamSets, NewStreams
from ebla.topology.keys import map_row
from ebla.topology.tablet_map import STREAM_SETS_MAX, TabletMap, TabletStreams


def with_new_stream_set(draft: TopologyDraft, tablets: TabletMap, new: NewStreams | None) -> tuple[TabletStreams, ...]:
    """The sets of the table plus a new one for its current tablet count. The oldest set is dropped at the limit: its
    records are many resizes old."""
    before = tablets.streams
    draft.require(new is not None, f"changes of table {tablets.table} are captured: its tablets need new streams")
    assert new is not None
    draft.require(0 <= new.mark < 1 << RANDOM_BITS, f"a mark has {RANDOM_BITS} bits")
    used = any(each.mark == new.mark for each in before)
    draft.require(not used, f"the mark {new.mark} belongs to an earlier set of table {tablets.table}")
    last_ms = before[-1].timestamp_ms if before else 0
    draft.require(new.timestamp_ms > last_ms, f"new streams must be later than {last_ms}, the last set's timestamp")
    return (*before, TabletStreams(new.timestamp_ms, tablets.tablet_count, new.mark))[-STREAM_SETS_MAX:]


def drop_stream_sets(draft: TopologyDraft, command: DropStreamSets) -> None:
    tablets = draft.base.tablets.get(command.table)
    draft.require(tablets is not None, f"table {command.table} has no tablets")
    assert tablets is not None
    known = any(each.timestamp_ms == command.oldest_kept_ms for each in tablets.streams)
    draft.require(known, f"table {command.table} has no streams from {command.oldest_kept_ms} on")
    kept = tuple(each for each in tablets.streams if each.timestamp_ms >= command.oldest_kept_ms)
    draft.put_all({keys.map_key(command.table): map_row(replace(tablets, streams=kept))})
    draft.set_state()

"""Merges the answers of several replicas into one page, and finds what each of them lacks. Pure.

Cells are merged by the one rule of `model.rows`. What a partition's head deletes at one replica is deleted from the
rows of all. Answers are compared up to the key that all of them cover (`short_reads.py`): beyond it, a replica that did
not send a row does not lack it. INV-ROWS-7: whatever is returned was written, with the timestamp that it has.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebla.model.identity import Replica
from ebla.model.rows import EMPTY_HEAD, EMPTY_ROW, PartitionHead
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING
from ebla.request.short_reads import (
    ReconcileOptions,
    SettledPage,
    common_end,
    cut_at_stops,
    is_beyond,
    merge_stops,
    partition_stops,
    partitions_entered_midway,
    settle_page,
)
from ebla.storage.codec.key_codec import decode_token, head_key, split_key
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head
from ebla.storage.compaction.tombstone_gc import GcRule, GcSpan, TombstoneCollector
from ebla.storage.merge.row_merge import merge_values, without_deleted_cells
from ebla.wire.row_messages import Item, ReadRowsAnswer, Span

_ANY_TIMESTAMP_US = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    replica: Replica
    page: ReadRowsAnswer
    heads: tuple[Item, ...] = ()
    """Heads of partitions in the page that were read separately (`missing_heads`)."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    page: SettledPage
    repairs: Mapping[Replica, tuple[Item, ...]]
    """Without the replicas that lack nothing."""


def digests_match(answers: Sequence[ReadRowsAnswer]) -> bool:
    return all(answer.digest == answers[0].digest for answer in answers)


def page_of_matching(data: ReadRowsAnswer, answers: Sequence[ReadRowsAnswer], options: ReconcileOptions) -> SettledPage:
    """The page of the replica that sent data, if all digests equal its own."""
    end = common_end(answers, is_reversed=options.is_reversed)
    items: Sequence[Item] = data.items
    if len(answers) > 1 and end is not None:
        items = [item for item in items if not is_beyond(item[0], end, is_reversed=options.is_reversed)]
    if not options.partition_rows_max:
        return SettledPage(tuple(items), end)
    stops = partition_stops(items, options.partition_rows_max, options.row_context)
    return settle_page(items, end, stops, options)


def reconcile_answers(answers: Sequence[ReplicaAnswer], options: ReconcileOptions) -> ReconcileResult:
    """Merges the answers of two or more replicas."""
    end = common_end((one.page for one in answers), is_reversed=options.is_reversed)
    stops: dict[bytes, bytes] = {}
    if options.partition_rows_max:
        found = (partition_stops(one.page.items, options.partition_rows_max, options.row_context) for one in answers)
        stops = merge_stops(found, is_reversed=options.is_reversed)
    known = [_known(one, end, stops, options) for one in answers]
    merged = _merged(known, options.row_context.schema)
    items = [
        (key, value)
        for key, value in sorted(merged.items(), reverse=options.is_reversed)
        if value is not None and not is_beyond(key, end, is_reversed=options.is_reversed)
    ]
    lacks = _Lacks(options, merged)
    repairs = {one.replica: lacks.items_for(have) for one, have in zip(answers, known)}
    return ReconcileResult(
        settle_page(items, end, stops, options), {replica: found for replica, found in repairs.items() if found}
    )


def missing_heads(answers: Iterable[ReadRowsAnswer], spans: Sequence[Span], *, is_reversed: bool) -> tuple[bytes, ...]:
    """The partitions of these pages whose heads have to be read: they hold what other replicas have deleted.

    A reversed read reaches a head only after its rows, or not at all if it was cut off. A forward read misses the head
    of a partition in whose middle it begins. Heads are not read together with the rows: a large head would fill the
    page, and the read would make no progress."""
    prefixes = {split_key(key)[0]: None for page in answers for key, _ in page.items}
    if is_reversed:
        return tuple(prefixes)
    return tuple(prefix for prefix in partitions_entered_midway(spans) if prefix in prefixes)


def _known(
    one: ReplicaAnswer, end: bytes | None, stops: Mapping[bytes, bytes], options: ReconcileOptions
) -> dict[bytes, bytes]:
    """What the replica has, up to where every page is known."""
    items = [item for item in one.page.items if not is_beyond(item[0], end, is_reversed=options.is_reversed)]
    known = dict(cut_at_stops(items, stops, is_reversed=options.is_reversed))
    for key, value in one.heads:
        mine = known.get(key)
        known[key] = value if mine is None else merge_values(mine, value, options.row_context.schema)
    return known


def _merged(known: Sequence[Mapping[bytes, bytes]], schema: TableSchema) -> dict[bytes, bytes | None]:
    """Every key's merged value; None if heads delete all of it."""
    merged: dict[bytes, bytes] = {}
    for have in known:
        for key, value in have.items():
            mine = merged.get(key)
            merged[key] = value if mine is None else merge_values(mine, value, schema)
    heads = _heads_of(merged)
    if not heads:
        return dict(merged)
    return {key: value if is_head(value) else _uncovered(key, value, heads, schema) for key, value in merged.items()}


def _heads_of(values: Mapping[bytes, bytes | None]) -> dict[bytes, PartitionHead]:
    return {
        split_key(key)[0]: decode_head(value) for key, value in values.items() if value is not None and is_head(value)
    }


def _uncovered(key: bytes, value: bytes, heads: Mapping[bytes, PartitionHead], schema: TableSchema) -> bytes | None:
    prefix, _, clustering = split_key(key)
    head = heads.get(prefix)
    return value if head is None else without_deleted_cells(value, head, clustering, schema)


class _Lacks:
    """What a replica lacks of the merged page."""

    def __init__(self, options: ReconcileOptions, merged: Mapping[bytes, bytes | None]) -> None:
        self._schema = options.row_context.schema
        self._merged = merged
        self._heads = _heads_of(merged)
        rule = (
            GcRule((GcSpan(WHOLE_RING, options.gc_before_s),), _ANY_TIMESTAMP_US) if options.gc_before_s else GcRule()
        )
        self._collector = TombstoneCollector(rule)

    def items_for(self, have: Mapping[bytes, bytes]) -> tuple[Item, ...]:
        wanted: dict[bytes, bytes] = {}
        for key, value in self._merged.items():
            mine = have.get(key)
            if mine is not None and not is_head(mine):
                left = _uncovered(key, mine, self._heads, self._schema)
                if left != mine:
                    # However old the deletion is, this replica still returns what it covers, and must have it.
                    head = head_key(split_key(key)[0])
                    deleting = self._merged[head]
                    assert deleting is not None, "heads cover rows, nothing covers heads"
                    wanted[head] = deleting
                mine = left
            if value is not None and self._differ(key, mine, value):
                wanted[key] = value
        return tuple(sorted(wanted.items()))

    def _differ(self, key: bytes, mine: bytes | None, merged: bytes) -> bool:
        if mine == merged:
            return False
        token = decode_token(key)
        if is_head(merged):
            head = EMPTY_HEAD if mine is None else decode_head(mine)
            return self._collector.head(token, head) != self._collector.head(token, decode_head(merged))
        row = EMPTY_ROW if mine is None else decode_row(mine, self._schema.layouts)
        return self._collector.row(token, row) != self._collector.row(token, decode_row(merged, self._schema.layouts))

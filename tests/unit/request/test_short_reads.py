from tests.unit.request.stored import SMALL, delete, head, head_at, prefix_of_key, put, row_at

from ebla.request.short_reads import (
    LiveRowContext,
    ReconcileOptions,
    SettledPage,
    common_end,
    cut_at_stops,
    head_spans,
    is_beyond,
    merge_stops,
    partition_stops,
    partitions_entered_midway,
    settle_page,
    spans_after,
    spans_after_rows,
    split_partition,
)
from ebla.storage.codec.key_codec import enclosing_partition, prefix_end, row_key
from ebla.wire.row_messages import ReadRowsAnswer

MOMENT = LiveRowContext(SMALL, 10)
P = prefix_of_key("p")
AFTER_P = prefix_end(P)


def page(last: bytes | None) -> ReadRowsAnswer:
    return ReadRowsAnswer(items=(), digest=b"", is_whole=last is None, last_key=last or b"")


def test_nothing_beyond_the_first_page_that_was_cut_off_is_known() -> None:
    pages = [page(b"c"), page(None), page(b"b")]
    assert common_end(pages, is_reversed=False) == b"b"
    assert common_end(pages, is_reversed=True) == b"c"
    assert common_end([page(None)], is_reversed=False) is None


def test_the_end_itself_is_known() -> None:
    assert [is_beyond(key, b"b", is_reversed=False) for key in (b"a", b"b", b"c")] == [False, False, True]
    assert [is_beyond(key, b"b", is_reversed=True) for key in (b"a", b"b", b"c")] == [True, False, False]
    assert not is_beyond(b"z", None, is_reversed=False)


def test_a_replica_stops_in_a_partition_with_its_last_row() -> None:
    items = [head("p", "s"), put("p", "1"), delete("p", "2"), put("p", "3")]
    assert partition_stops(items, 2, MOMENT) == {P: row_at("p", "3")}
    assert partition_stops(items, 3, MOMENT) == {}


def test_the_first_stop_counts() -> None:
    stops = [{b"p": b"p3", b"q": b"q1"}, {b"p": b"p2"}]
    assert merge_stops(stops, is_reversed=False) == {b"p": b"p2", b"q": b"q1"}
    assert merge_stops(stops, is_reversed=True) == {b"p": b"p3", b"q": b"q1"}


def test_rows_behind_a_stop_are_left_out_and_heads_are_not() -> None:
    items = [put("p", "2"), put("p", "1"), head("p", "s")]
    assert cut_at_stops(items, {P: row_at("p", "2")}, is_reversed=True) == (items[0], items[2])
    assert cut_at_stops(items, {}, is_reversed=True) == tuple(items)


def limit(rows_max: int, *, is_reversed: bool = False) -> ReconcileOptions:
    return ReconcileOptions(row_context=MOMENT, gc_before_s=0, is_reversed=is_reversed, partition_rows_max=rows_max)


def test_a_partition_with_too_few_live_rows_before_a_stop_ends_what_is_known() -> None:
    first, second = sorted(("p", "q"), key=prefix_of_key)
    items = [delete(first, "1"), put(first, "2"), put(second, "1")]
    stops = {prefix_of_key(first): row_at(first, "2")}
    assert settle_page(items, None, stops, limit(2)) == SettledPage(tuple(items[:2]), row_at(first, "2"))
    assert settle_page(items, None, stops, limit(1)) == SettledPage(tuple(items), None)


def test_a_stop_behind_the_end_does_not_move_it() -> None:
    items = [delete("p", "1")]
    end = row_at("p", "1")
    assert settle_page(items, end, {P: row_at("p", "9")}, limit(2)) == SettledPage(tuple(items), end)
    backwards = settle_page(items, end, {P: row_at("p", "0")}, limit(2, is_reversed=True))
    assert backwards == SettledPage(tuple(items), end)


def test_the_first_partition_in_question_decides() -> None:
    first, second = sorted(("p", "q"), key=prefix_of_key)
    stops = {prefix_of_key(second): row_at(second, "1"), prefix_of_key(first): row_at(first, "1")}
    forward = [delete(first, "1"), delete(second, "1")]
    assert settle_page(forward, None, stops, limit(1)).end == row_at(first, "1")
    assert settle_page(forward[::-1], None, stops, limit(1, is_reversed=True)).end == row_at(second, "1")


def test_the_rest_begins_behind_the_last_key() -> None:
    spans = ((b"a", b"c"), (b"e", None))
    assert spans_after(spans, b"b", is_reversed=False) == ((b"b\0", b"c"), (b"e", None))
    assert spans_after(spans, b"d", is_reversed=False) == ((b"e", None),)
    assert spans_after(spans, b"f", is_reversed=True) == ((b"a", b"c"), (b"e", b"f"))
    assert spans_after(spans, b"b", is_reversed=True) == ((b"a", b"b"),)
    assert spans_after(((b"a", b"a\0"),), b"a", is_reversed=False) == ()


def test_behind_the_rows_of_a_partition_a_reversed_read_has_its_head() -> None:
    spans = ((b"", None),)
    assert spans_after_rows(spans, P, is_reversed=False) == ((AFTER_P, None),)
    assert spans_after_rows(spans, P, is_reversed=True) == ((b"", row_key(P)),)


def test_a_partition_is_split_from_what_follows() -> None:
    spans = ((row_at("p", "3"), None),)
    assert split_partition(spans, P, is_reversed=False) == (((row_at("p", "3"), AFTER_P),), ((AFTER_P, None),))
    assert split_partition(((b"", row_at("p", "3")),), P, is_reversed=True) == (
        ((P, row_at("p", "3")),),
        ((b"", P),),
    )


def test_partitions_in_whose_middle_a_read_begins() -> None:
    head_span = (head_at("p"), head_at("p") + b"\0")
    low, middle = (row_at("p", "1"), row_at("p", "2")), (row_at("p", "5"), None)
    assert partitions_entered_midway((low, middle)) == (P,)
    assert partitions_entered_midway(((P, row_at("p", "2")), middle)) == ()
    assert partitions_entered_midway((head_span, middle)) == ()
    assert partitions_entered_midway(((b"", None),)) == ()


def test_the_partition_of_a_key() -> None:
    assert enclosing_partition(row_at("p", "1")) == P
    assert enclosing_partition(head_at("p")) == P
    assert enclosing_partition(P) is None
    assert enclosing_partition(AFTER_P) is None
    assert enclosing_partition(b"") is None


def test_head_spans_are_in_order() -> None:
    prefixes = sorted((prefix_of_key("p"), prefix_of_key("q")))
    assert head_spans(reversed(prefixes)) == tuple((each + b"\x01", each + b"\x01\0") for each in prefixes)

from tests.unit.request.stored import (
    SMALL,
    delete,
    delete_slice,
    head,
    head_at,
    prefix_of_key,
    put,
    row_at,
    value_of,
)
from tests.unit.topology.small_cluster import replica

from ebla.model.rows import Deletion
from ebla.request.reconcile import (
    ReplicaAnswer,
    digests_match,
    missing_heads,
    page_of_matching,
    reconcile_answers,
)
from ebla.request.short_reads import LiveRowContext, ReconcileOptions
from ebla.storage.layers.layer import Item
from ebla.wire.row_messages import ReadRowsAnswer, Span

A, B, C = replica(1), replica(2), replica(3)
NOW_S = 10
FORWARD = ReconcileOptions(row_context=LiveRowContext(SMALL, NOW_S), gc_before_s=0)
BACKWARD = ReconcileOptions(row_context=LiveRowContext(SMALL, NOW_S), gc_before_s=0, is_reversed=True)
COLLECTING = ReconcileOptions(row_context=LiveRowContext(SMALL, NOW_S), gc_before_s=NOW_S)


def page(*items: Item, last: bytes | None = None, digest: bytes = b"") -> ReadRowsAnswer:
    return ReadRowsAnswer(items=items, digest=digest, is_whole=last is None, last_key=last or b"")


def whole(name: str, *items: Item) -> ReplicaAnswer:
    return ReplicaAnswer({"a": A, "b": B, "c": C}[name], page(*items))


def test_digests_match_only_where_all_are_the_same() -> None:
    assert digests_match([page(digest=b"1"), page(digest=b"1")])
    assert not digests_match([page(digest=b"1"), page(digest=b"1"), page(digest=b"2")])


def test_data_with_the_same_digests_is_known_to_the_least_end() -> None:
    data = page(put("p", "1"), put("p", "2"))
    cut = page(last=row_at("p", "1"))
    assert page_of_matching(data, [data], FORWARD).items == data.items
    assert page_of_matching(data, [data, cut], FORWARD).items == data.items[:1]
    assert page_of_matching(data, [data, cut], FORWARD).end == row_at("p", "1")


def test_the_newest_cell_wins_and_whoever_lacks_it_gets_it() -> None:
    found = reconcile_answers(
        [whole("a", put("p", "1", "old", 1)), whole("b", put("p", "1", "new", 2)), whole("c")], FORWARD
    )
    assert [value_of(item) for item in found.page.items] == ["new"]
    assert found.repairs == {A: (put("p", "1", "new", 2),), C: (put("p", "1", "new", 2),)}


def test_replicas_that_agree_lack_nothing() -> None:
    assert reconcile_answers([whole("a", put("p", "1")), whole("b", put("p", "1"))], FORWARD).repairs == {}


def test_a_deletion_that_one_replica_missed() -> None:
    found = reconcile_answers([whole("a", put("p", "1")), whole("b", delete("p", "1", 2))], FORWARD)
    assert found.page.items == (delete("p", "1", 2),)
    assert found.repairs == {A: (delete("p", "1", 2),)}


def test_what_one_replicas_head_deletes_is_gone_from_all() -> None:
    slice_deleted = delete_slice("p", "1", "3")
    rows = [put("p", number) for number in "0123"]
    found = reconcile_answers([whole("a", slice_deleted, rows[0], rows[3]), whole("b", *rows)], FORWARD)
    assert found.page.items == (slice_deleted, rows[0], rows[3])
    assert found.repairs == {B: (slice_deleted,)}


def test_nothing_is_lacked_beyond_what_a_page_says() -> None:
    rows = [put("p", number) for number in "123"]
    short = ReplicaAnswer(A, page(rows[0], last=row_at("p", "1")))
    found = reconcile_answers([short, whole("b", *rows)], FORWARD)
    assert found.page.items == (rows[0],)
    assert found.page.end == row_at("p", "1")
    assert found.repairs == {}


def test_nor_behind_the_stop_of_its_partition() -> None:
    rows = [put("p", number) for number in "123"]
    terms = ReconcileOptions(row_context=LiveRowContext(SMALL, NOW_S), gc_before_s=0, partition_rows_max=2)
    found = reconcile_answers([whole("a", rows[0], rows[1]), whole("b", rows[1], rows[2])], terms)
    assert found.page.items == (rows[0], rows[1])
    assert found.page.end is None
    assert found.repairs == {B: (rows[0],)}


def test_backwards_heads_come_apart_from_their_rows() -> None:
    slice_deleted = delete_slice("p", "2", "9")
    rows = [put("p", number) for number in "321"]
    end = row_at("p", "2")
    deleted = ReplicaAnswer(A, page(last=end), heads=(slice_deleted,))
    found = reconcile_answers([deleted, ReplicaAnswer(B, page(*rows[:2], last=end))], BACKWARD)
    assert found.page.items == ()
    assert found.page.end == end
    assert found.repairs == {B: (slice_deleted,)}


def test_heads_that_were_not_met_are_asked_for() -> None:
    pages = [page(put("p", "1")), page(put("q", "1"), put("p", "2"))]
    everything: tuple[Span, ...] = ((b"", None),)
    inside: tuple[Span, ...] = ((row_at("p", "1"), None),)
    assert missing_heads(pages, everything, is_reversed=True) == (prefix_of_key("p"), prefix_of_key("q"))
    assert missing_heads(pages, everything, is_reversed=False) == ()
    assert missing_heads(pages, inside, is_reversed=False) == (prefix_of_key("p"),)
    assert missing_heads([page(put("q", "1"))], inside, is_reversed=False) == ()


def test_a_tombstone_whose_time_has_passed_is_no_difference_by_itself() -> None:
    """One replica has dropped it already, and would be given it again with every read."""
    old = delete("p", "1", 2, at_s=5)
    assert reconcile_answers([whole("a", old), whole("b")], COLLECTING).repairs == {}
    assert reconcile_answers([whole("a", old), whole("b")], FORWARD).repairs == {B: (old,)}
    deleted = head("p", deletion=Deletion(2, 5))
    assert reconcile_answers([whole("a", deleted), whole("b")], COLLECTING).repairs == {}


def test_but_whoever_shows_what_it_covers_gets_it() -> None:
    old = delete("p", "1", 2, at_s=5)
    found = reconcile_answers([whole("a", old), whole("b", put("p", "1", at_us=1))], COLLECTING)
    assert found.repairs == {B: (old,)}
    deleted = head("p", deletion=Deletion(2, 5))
    found = reconcile_answers([whole("a", deleted), whole("b", put("p", "1", at_us=1))], COLLECTING)
    assert found.page.items == (deleted,)
    assert found.repairs == {B: (deleted,)}


def test_heads_are_merged_too() -> None:
    found = reconcile_answers([whole("a", head("p", "old", 1)), whole("b", head("p", "new", 2))], FORWARD)
    assert found.page.items == (head("p", "new", 2),)
    assert found.repairs == {A: (head("p", "new", 2),)}
    assert found.page.items[0][0] == head_at("p")

import uuid

import msgspec
import pytest
from tests.unit.request.stored import SMALL, delete, head, head_at, prefix_of_key, put, row_at

from ebla.model.errors import InvalidRequest
from ebla.model.identity import TableId
from ebla.request.paging import PageBuilder, ReadPosition, check_query, decode_position, encode_position
from ebla.request.router_types import ReadQuery
from ebla.request.short_reads import LiveRowContext, SettledPage
from ebla.storage.layers.layer import Item
from ebla.wire.row_messages import Span

TABLE = TableId(uuid.UUID(int=1))
MOMENT = LiveRowContext(SMALL, 10)
EVERYTHING: tuple[Span, ...] = ((b"", None),)
PLAIN = ReadQuery(table=TABLE, spans=EVERYTHING, rows_max=3, now_s=10)
LIMITED = ReadQuery(table=TABLE, spans=EVERYTHING, rows_max=3, now_s=10, is_reversed=False, partition_rows_max=2)
BACKWARDS = ReadQuery(table=TABLE, spans=EVERYTHING, rows_max=3, now_s=10, is_reversed=True)
P, Q = sorted(("p", "q"), key=prefix_of_key)


def with_position(query: ReadQuery, position: bytes) -> ReadQuery:
    return msgspec.structs.replace(query, position=position)


def keys(builder: PageBuilder) -> list[bytes]:
    return [key for key, _ in builder.items]


def taken(query: ReadQuery, *items: Item, end: bytes | None = None) -> PageBuilder:
    builder = PageBuilder(query, 1 << 20)
    builder.take(SettledPage(items, end), builder.rest, MOMENT)
    return builder


# Positions


@pytest.mark.parametrize(
    ("query", "position"),
    [
        (PLAIN, ReadPosition(b"")),
        (PLAIN, ReadPosition(row_at("p", "1") + b"\0")),
        (LIMITED, ReadPosition(row_at("p", "1"), 0)),
        (LIMITED, ReadPosition(row_at("p", "1"), 2)),
        (BACKWARDS, ReadPosition(row_at("p", "1"))),
    ],
)
def test_a_position_is_read_back(query: ReadQuery, position: ReadPosition) -> None:
    data = encode_position(position, TABLE, is_reversed=query.is_reversed)
    assert decode_position(data, query) == position


def test_the_format_of_a_position_stays() -> None:
    """Clients keep positions over upgrades."""
    data = encode_position(ReadPosition(b"key", 7), TABLE, is_reversed=True)
    assert data.hex() == "0101000000076b6579" + data[-4:].hex()
    assert data[-4:].hex() == "35da3b6e"


@pytest.mark.parametrize(
    ("change", "query", "words"),
    [
        (lambda data: data[:9], PLAIN, "too short"),
        (lambda data: b"\x09" + data[1:], PLAIN, "format 9"),
        (lambda data: data[:-1] + bytes((data[-1] ^ 1,)), PLAIN, "damaged"),
        (lambda data: data[:7] + b"?" + data[8:], PLAIN, "damaged"),
        (lambda data: data, msgspec.structs.replace(PLAIN, table=TableId(uuid.UUID(int=2))), "another table"),
        (lambda data: data, BACKWARDS, "the other order"),
        (lambda data: data, LIMITED, "another limit"),
        (lambda data: data, msgspec.structs.replace(PLAIN, spans=((b"\xff", None),)), "outside"),
        (lambda data: data, msgspec.structs.replace(PLAIN, spans=((b"", b"\0"),)), "outside"),
    ],
)
def test_a_position_of_something_else_is_refused(change: object, query: ReadQuery, words: str) -> None:
    assert callable(change)
    data = change(encode_position(ReadPosition(row_at("p", "1")), TABLE, is_reversed=False))
    with pytest.raises(InvalidRequest, match=words):
        PageBuilder(with_position(query, data), 1 << 20)


@pytest.mark.parametrize("left", [3, -2])
def test_more_rows_than_the_limit_are_refused(left: int) -> None:
    data = encode_position(ReadPosition(row_at("p", "1"), left), TABLE, is_reversed=False)
    with pytest.raises(InvalidRequest, match="another limit"):
        decode_position(data, LIMITED)


@pytest.mark.parametrize(
    ("spans", "rows_max", "partition_rows_max"),
    [
        (EVERYTHING, 0, 0),
        (EVERYTHING, 1, -1),
        ((), 1, 0),
        (((b"b", b"b"),), 1, 0),
        (((b"c", b"b"),), 1, 0),
        (((b"c", b"d"), (b"a", b"b")), 1, 0),
        (((b"a", b"b"), (b"b", b"c")), 1, 0),
        (((b"a", None), (b"b", b"c")), 1, 0),
    ],
)
def test_queries_that_are_none(spans: tuple[Span, ...], rows_max: int, partition_rows_max: int) -> None:
    with pytest.raises(InvalidRequest):
        check_query(
            ReadQuery(
                table=TABLE,
                spans=spans,
                rows_max=rows_max,
                now_s=10,
                is_reversed=False,
                partition_rows_max=partition_rows_max,
            )
        )


# Pages


def test_live_rows_and_heads_with_static_cells_are_taken() -> None:
    builder = taken(PLAIN, head(P, "s"), put(P, "1"), delete(P, "2"), head(Q), put(Q, "1"))
    assert keys(builder) == [head_at(P), row_at(P, "1"), row_at(Q, "1")]
    assert builder.rest == ()
    assert builder.page().position == b""


def test_the_next_page_begins_behind_the_last_row() -> None:
    builder = taken(PLAIN, *[put(P, str(number)) for number in range(5)])
    assert len(builder.items) == 3
    assert builder.is_full
    again = PageBuilder(with_position(PLAIN, builder.page().position), 1 << 20)
    assert again.rest == ((row_at(P, "2") + b"\0", None),)


def test_a_full_page_at_the_end_of_the_spans_is_the_last() -> None:
    query = msgspec.structs.replace(PLAIN, spans=((row_at(P, "1"), row_at(P, "1") + b"\0"),), rows_max=1)
    assert taken(query, put(P, "1")).page().position == b""


def test_the_bytes_of_a_page_are_bounded() -> None:
    builder = PageBuilder(PLAIN, 60)
    assert not builder.take(SettledPage((put(P, "1", "v" * 60), put(P, "2")), None), EVERYTHING, MOMENT)
    assert keys(builder) == [row_at(P, "1")]
    assert builder.page().position


def test_what_is_known_to_a_key_goes_on_behind_it() -> None:
    builder = taken(PLAIN, put(P, "1"), end=row_at(P, "3"))
    assert builder.rest == ((row_at(P, "3") + b"\0", None),)
    assert not builder.is_full


def test_a_head_that_was_read_for_its_deletions_alone_is_not_shown() -> None:
    query = msgspec.structs.replace(PLAIN, spans=((row_at(P, "1"), None),))
    assert keys(taken(query, head(P, "s"), put(P, "1"))) == [row_at(P, "1")]


def test_each_partition_gives_its_share_over_pages() -> None:
    rows = [put(P, str(number)) for number in range(4)] + [put(Q, str(number)) for number in range(4)]
    first = taken(LIMITED, *rows)
    assert keys(first) == [row_at(P, "0"), row_at(P, "1"), row_at(Q, "0")]
    again = PageBuilder(with_position(LIMITED, first.page().position), 1 << 20)
    assert again.entered_partition == (prefix_of_key(Q), 1)
    again.take(SettledPage(tuple(rows[5:]), None), again.rest, MOMENT)
    assert keys(again) == [row_at(Q, "1")]


def test_a_partition_that_has_given_all_is_skipped() -> None:
    query = msgspec.structs.replace(LIMITED, rows_max=2)
    builder = taken(query, put(P, "0"), put(P, "1"), put(P, "2"))
    again = PageBuilder(with_position(query, builder.page().position), 1 << 20)
    assert again.rest[0][0] > row_at(P, "9")
    assert again.entered_partition is None


def test_backwards_the_head_of_such_a_partition_is_still_to_come() -> None:
    query = msgspec.structs.replace(LIMITED, is_reversed=True, rows_max=2)
    builder = taken(query, put(P, "3"), put(P, "2"))
    again = PageBuilder(with_position(query, builder.page().position), 1 << 20)
    assert again.entered_partition is None
    again.take(SettledPage((head(P, "s"),), None), again.rest, MOMENT)
    assert keys(again) == [head_at(P)]


def test_pieces_leave_what_comes_behind_them() -> None:
    middle = row_at(Q, "1")
    forward = PageBuilder(PLAIN, 1 << 20)
    assert forward.take(SettledPage((put(P, "1"),), None), ((b"", middle),), MOMENT)
    assert forward.rest == ((middle, None),)
    backward = PageBuilder(BACKWARDS, 1 << 20)
    assert backward.take(SettledPage((), None), ((middle, None),), MOMENT)
    assert backward.rest == ((b"", middle),)

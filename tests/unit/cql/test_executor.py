"""Executed statements: prepared, recompiled, batched, routed, paged."""

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.cql.world import NOW_US, Cql, python_rows

from ebla.cql.executor import TABLET_PAYLOAD_KEY, UNLOGGED_WARNING, PendingResponse, merge_by_partition
from ebla.cql.plan.select_plan import PAGING_STATE_FORMAT, PagingState, decode_paging_state, encode_paging_state
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest, NotFound, TooLarge, Unavailable, Unprepared
from ebla.model.identity import TableId
from ebla.model.token import token_of
from ebla.model.values import decode, encode
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.request.router_types import Mutation
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import BatchItem, CqlResponse, KeyspaceSet, PreparedResult, QueryParameters, Rows, Void

INT = parse_type("int")


def number(value: int) -> bytes:
    return encode(INT, value)


@pytest.fixture
def cql() -> Cql:
    made = Cql()
    made.run("CREATE TABLE t (k int, c int, v int, l list<int>, PRIMARY KEY (k, c))")
    return made


def prepare(cql: Cql, text: str) -> PreparedResult:
    return cql.executor.prepare(cql.session, text)


def execute(cql: Cql, prepared: PreparedResult, *values: bytes | None, **changes: Any) -> CqlResponse:
    parameters = QueryParameters(values=values, **changes)
    return cql.finish(lambda: cql.executor.begin_execute(cql.session, prepared.id, parameters))


# ---- prepared statements


def test_what_a_driver_learns_from_preparing(cql: Cql) -> None:
    found = prepare(cql, "SELECT v, c AS x FROM t WHERE k = ? AND c > :low LIMIT ?")
    assert [(one.name, str(one.type)) for one in found.variables] == [("k", "int"), ("low", "int"), ("[limit]", "int")]
    assert [(one.name, one.keyspace, one.table) for one in found.columns] == [("v", "ks", "t"), ("x", "ks", "t")]
    assert found.key_positions == (0,)
    assert len(found.id) == 16
    write = prepare(cql, "INSERT INTO t (v, c, k) VALUES (?, ?, ?)")
    assert (write.key_positions, write.columns) == ((2,), ())
    assert prepare(cql, "INSERT INTO t (v, c, k) VALUES (?, ?, 1)").key_positions == ()
    assert prepare(cql, "SELECT v FROM t WHERE k IN (?, ?)").key_positions == ()
    assert prepare(cql, "SELECT v FROM t WHERE k IN ?").key_positions == ()


def test_key_positions_of_a_composite_key(cql: Cql) -> None:
    cql.run("CREATE TABLE two (p int, q int, v int, PRIMARY KEY ((p, q)))")
    assert prepare(cql, "INSERT INTO two (v, q, p) VALUES (?, ?, ?)").key_positions == (2, 1)
    assert prepare(cql, "SELECT v FROM two WHERE q = ? AND p = 1").key_positions == ()


def test_ids_follow_from_keyspace_and_text(cql: Cql) -> None:
    one = prepare(cql, "SELECT v FROM t")
    assert prepare(cql, "SELECT v FROM t") == one
    assert prepare(cql, "SELECT v  FROM t").id != one.id
    cql.session.keyspace = None
    assert prepare(cql, "SELECT v FROM ks.t").id != one.id


def test_executing(cql: Cql) -> None:
    write = prepare(cql, "INSERT INTO t (k, c, v) VALUES (?, ?, ?)")
    read = prepare(cql, "SELECT v FROM t WHERE k = ?")
    for c in range(3):
        execute(cql, write, number(1), number(c), number(c * 10))
    found = execute(cql, read, number(1)).result
    assert isinstance(found, Rows)
    assert python_rows(found) == [(0,), (10,), (20,)]
    named = QueryParameters(values=(number(1),), names=("k",))
    again = cql.finish(lambda: cql.executor.begin_execute(cql.session, read.id, named)).result
    assert again == found


def test_a_statement_keeps_the_keyspace_it_was_prepared_in(cql: Cql) -> None:
    read = prepare(cql, "SELECT v FROM t")
    cql.session.keyspace = "system"
    assert execute(cql, read).result == Rows(read.columns, [])


def test_what_was_never_prepared(cql: Cql) -> None:
    with pytest.raises(Unprepared) as caught:
        execute(cql, PreparedResult(id=b"x" * 16, variables=(), key_positions=(), columns=()))
    assert caught.value.statement_id == b"x" * 16


def test_plans_are_made_anew_after_the_table_changed(cql: Cql) -> None:
    read, write = prepare(cql, "SELECT * FROM t"), prepare(cql, "INSERT INTO t (k, c, v) VALUES (1, 1, ?)")
    execute(cql, write, number(5))
    cql.run("ALTER TABLE t ADD w text")
    execute(cql, write, number(6))
    found = execute(cql, read).result
    assert isinstance(found, Rows)
    assert [column.name for column in found.columns] == ["k", "c", "l", "v", "w"]
    assert python_rows(found) == [(1, 1, None, 6, None)]
    cql.run("ALTER TABLE t DROP v")
    with pytest.raises(InvalidRequest, match="Undefined column name v"):
        execute(cql, write, number(7))
    cql.run("DROP TABLE t")
    with pytest.raises(NotFound, match="unconfigured table t"):
        execute(cql, read)
    cql.run("CREATE TABLE t (k int PRIMARY KEY)")
    assert execute(cql, read).result == Rows(prepare(cql, "SELECT * FROM t").columns, [])


def test_the_same_text_after_the_table_changed(cql: Cql) -> None:
    assert [column.name for column in cql.found("SELECT * FROM t").columns] == ["k", "c", "l", "v"]
    cql.run("ALTER TABLE t DROP l")
    assert [column.name for column in cql.found("SELECT * FROM t").columns] == ["k", "c", "v"]


def test_markers_where_there_can_be_none(cql: Cql) -> None:
    for text in ("TRUNCATE t", "USE ks", "DESCRIBE TABLES"):
        assert prepare(cql, text).variables == ()
    assert execute(cql, prepare(cql, "USE system")).result == KeyspaceSet("system")


@pytest.mark.parametrize(
    ("text", "what"),
    [("SELECT JSON v FROM t", "SELECT JSON"), ("CREATE INDEX ON t (v)", "indexes"), ("LIST ROLES", "roles")],
)
def test_what_is_not_there_says_so(cql: Cql, text: str, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{what}.* not supported in this release"):
        cql.run(text)


def test_as_many_values_as_markers(cql: Cql) -> None:
    with pytest.raises(InvalidRequest, match="1 bound variables"):
        cql.run("INSERT INTO t (k, c) VALUES (?, ?)", number(1))


# ---- the first step of a request


def finished(begun: CqlResponse | PendingResponse | Coroutine[Any, Any, CqlResponse]) -> CqlResponse:
    if isinstance(begun, CqlResponse):
        return begun
    if isinstance(begun, PendingResponse):
        assert begun.done.done()
        return begun.response
    return asyncio.run(begun)


def test_requests_that_begin_at_once_answer_the_same(cql: Cql) -> None:
    for c in range(3):
        cql.run(f"INSERT INTO t (k, c, v, l) VALUES (1, {c}, {c}, [{c}])")
    for text in (
        "SELECT * FROM t",
        "SELECT v FROM t WHERE k = 1",
        "SELECT v, c FROM t WHERE k = 1 AND c = 2",
        "SELECT c, v, c FROM t WHERE k = 1 AND c = 2",
        "SELECT v FROM t WHERE k = 1 AND c = 9",
        "SELECT count(*) FROM t WHERE k = 1",
        "SELECT key FROM system.local",
    ):
        assert finished(cql.executor.begin_query(cql.session, text, QueryParameters())).result == cql.run(text), text

    async def write(text: str) -> CqlResponse:
        return finished(cql.executor.begin_query(cql.session, text, QueryParameters()))

    assert asyncio.run(write("DELETE FROM t WHERE k = 1 AND c = 1")).result == Void()
    assert cql.rows("SELECT c FROM t") == [(0,), (2,)]
    asyncio.run(write("UPDATE t SET l[0] = 9 WHERE k = 1 AND c = 0"))
    assert cql.rows("SELECT l FROM t WHERE k = 1 AND c = 0") == [([9],)]


# ---- batches


def test_a_batch_of_texts_and_prepared_statements(cql: Cql) -> None:
    write = prepare(cql, "INSERT INTO t (k, c, v) VALUES (?, ?, ?)")
    answer = cql.batch(
        BatchItem("INSERT INTO t (k, c, v) VALUES (1, 1, 1)"),
        BatchItem(write.id, (number(1), number(2), number(2))),
        BatchItem("UPDATE t SET v = :x WHERE k = 1 AND c = 3", (number(3),), ("x",)),
        kind=BatchKind.LOGGED,
    )
    assert answer == CqlResponse(Void())
    assert cql.rows("SELECT c, v FROM t") == [(1, 1), (2, 2), (3, 3)]
    times = {row[0] for row in cql.rows("SELECT writetime(v) FROM t")}
    assert len(times) == 1


def test_a_batch_has_one_timestamp_unless_a_statement_has_its_own(cql: Cql) -> None:
    cql.batch(
        BatchItem("INSERT INTO t (k, c, v) VALUES (1, 1, 1)"),
        BatchItem("INSERT INTO t (k, c, v) VALUES (1, 2, 1) USING TIMESTAMP 5"),
        timestamp_us=77,
    )
    assert cql.rows("SELECT c, writetime(v) FROM t") == [(1, 77), (2, 5)]


def test_empty_batches(cql: Cql) -> None:
    assert cql.batch() == CqlResponse(Void())
    assert cql.answer("BEGIN BATCH APPLY BATCH") == CqlResponse(Void())
    assert cql.answer("BEGIN UNLOGGED BATCH APPLY BATCH;") == CqlResponse(Void())


def test_a_logged_batch_over_partitions_warns(cql: Cql) -> None:
    items = [BatchItem(f"INSERT INTO t (k, c) VALUES ({k}, 1)") for k in (1, 2)]
    assert cql.batch(*items, kind=BatchKind.LOGGED).warnings == (UNLOGGED_WARNING,)
    assert cql.batch(*items, kind=BatchKind.UNLOGGED).warnings == ()
    assert cql.batch(items[0], items[0], kind=BatchKind.LOGGED).warnings == ()


def test_lists_grow_in_the_order_of_a_batch(cql: Cql) -> None:
    changes = ("l = l + [1, 2]", "l = l + [3]", "l = [0] + l", "l = [-1] + l")
    cql.batch(*(BatchItem(f"UPDATE t SET {change} WHERE k = 1 AND c = 1") for change in changes))
    assert cql.rows("SELECT l FROM t") == [([-1, 0, 1, 2, 3],)]
    texts = "; ".join(f"UPDATE t SET {change} WHERE k = 1 AND c = 2" for change in changes)
    cql.run(f"BEGIN UNLOGGED BATCH {texts}; APPLY BATCH")
    assert cql.rows("SELECT l FROM t WHERE k = 1 AND c = 2") == [([-1, 0, 1, 2, 3],)]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("SELECT v FROM t", "Invalid statement in batch"),
        ("CREATE TABLE x (k int PRIMARY KEY)", "Invalid statement in batch"),
        ("BEGIN BATCH APPLY BATCH", "Invalid statement in batch"),
        ("INSERT INTO t (k, c) VALUES (?, 1)", "0 bound variables"),
    ],
)
def test_what_a_batch_refuses(cql: Cql, item: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cql.batch(BatchItem("INSERT INTO t (k, c) VALUES (5, 5)"), BatchItem(item))
    assert words in str(caught.value)
    assert cql.rows("SELECT * FROM t") == []


def test_batches_have_a_size(cql: Cql) -> None:
    item = BatchItem("INSERT INTO t (k, c) VALUES (5, 5)")
    with pytest.raises(TooLarge, match="a batch of 10001 statements"):
        cql.batch(*[item] * 10_001)
    cql.run("CREATE TABLE big (k int PRIMARY KEY, v blob)")
    large = BatchItem("INSERT INTO big (k, v) VALUES (1, ?)", (bytes(100 << 10),))
    assert cql.batch(large).warnings == ()
    (warning,) = cql.batch(large, large).warnings
    assert "is above the warning threshold of 131072" in warning
    with pytest.raises(TooLarge, match=r"Batch too large: .* limits.cql_batch_bytes_max \(1048576\)"):
        cql.batch(*[large] * 11)
    with pytest.raises(InvalidRequest, match="counters"):
        cql.batch(kind=BatchKind.COUNTER)


TEXT = (
    "BEGIN BATCH USING TIMESTAMP :t INSERT INTO t (k, c, v) VALUES (:k, 1, ?); DELETE FROM t WHERE k = :k; APPLY BATCH"
)


def test_a_batch_in_one_text_is_prepared_as_a_whole(cql: Cql) -> None:
    found = prepare(cql, TEXT)
    names = [(one.name, str(one.type), one.keyspace, one.table) for one in found.variables]
    assert names == [
        ("t", "bigint", "ks", "t"),
        ("k", "int", "ks", "t"),
        ("v", "int", "ks", "t"),
        ("k", "int", "ks", "t"),
    ]
    late = encode(parse_type("bigint"), 99)
    execute(cql, found, late, number(1), number(7), number(2))
    assert cql.rows("SELECT k, v, writetime(v) FROM t") == [(1, 7, 99)]
    cql.run("ALTER TABLE t ADD w int")
    execute(cql, found, late, number(3), number(8), number(2))
    assert cql.rows("SELECT v FROM t WHERE k = 3") == [(8,)]


def test_named_values_of_a_batch_in_one_text(cql: Cql) -> None:
    text = (
        "BEGIN BATCH INSERT INTO t (k, c, v) VALUES (:k, 1, :v); INSERT INTO t (k, c, v) VALUES (:k, 2, :v) APPLY BATCH"
    )
    parameters = QueryParameters(values=(number(4), number(5)), names=("v", "k"))
    cql.finish(lambda: cql.executor.begin_query(cql.session, text, parameters))
    assert cql.rows("SELECT k, c, v FROM t") == [(5, 1, 4), (5, 2, 4)]


def test_timestamps_of_a_batch_in_one_text(cql: Cql) -> None:
    insert = "INSERT INTO t (k, c, v) VALUES (1, 1, 1)"
    cql.run(f"BEGIN BATCH {insert} USING TIMESTAMP 9; APPLY BATCH")
    assert cql.rows("SELECT writetime(v) FROM t") == [(9,)]
    with pytest.raises(InvalidRequest, match="Timestamp must be set either on BATCH or individual statements"):
        cql.run(f"BEGIN BATCH USING TIMESTAMP 5 {insert} USING TIMESTAMP 6; APPLY BATCH")
    with pytest.raises(InvalidRequest, match="Timeout values must be non-negative"):
        cql.run(f"BEGIN BATCH USING TIMEOUT -1s {insert}; APPLY BATCH")


def test_one_mutation_for_each_partition() -> None:
    def item(token: int, key: bytes, rest: bytes) -> tuple[bytes, bytes]:
        return token.to_bytes(8) + len(key).to_bytes(2) + key + rest, b"v"

    one, other = TableId(uuid.UUID(int=1)), TableId(uuid.UUID(int=2))
    token = token_of(b"a")
    mutations = [
        Mutation(one, token, (item(5, b"a", b"1"),)),
        Mutation(one, token, (item(5, b"ab", b"1"),)),
        Mutation(other, token, (item(5, b"a", b"1"),)),
        Mutation(one, token, (item(5, b"a", b"2"),)),
        Mutation(one, token, ()),
    ]
    joined = merge_by_partition(mutations)
    assert [(one.table, len(one.items)) for one in joined] == [(one, 2), (one, 1), (other, 1)]


# ---- where a tablet is


def test_a_driver_at_the_wrong_shard_is_told_the_right_one(cql: Cql) -> None:
    cql.session.tablet_routing = True
    shape = parse_type("tuple<bigint, bigint, frozen<list<frozen<tuple<uuid, int>>>>>")
    read = prepare(cql, "SELECT v FROM t WHERE k = ?")
    write = prepare(cql, "INSERT INTO t (k, c) VALUES (?, 1)")
    (table,) = cql.view.current.schemas
    hinted = 0
    for k in range(20):
        replicas = [(one.host, one.shard) for one in cql.view.current.sets.of(table).reading(token_of(number(k)))]
        payloads = [execute(cql, one, number(k)).payload for one in (read, write)]
        assert payloads[0] == payloads[1]
        if (cql.own.host, cql.own.shard) in replicas:
            assert payloads[0] == {}
            continue
        hinted += 1
        first, last, placed = decode(shape, payloads[0][TABLET_PAYLOAD_KEY])
        assert first < token_of(number(k)) <= last
        assert placed == replicas
    assert hinted > 0
    assert cql.answer("SELECT v FROM t").payload == {}
    assert (
        execute(cql, prepare(cql, "SELECT v FROM t WHERE k IN ?"), encode(parse_type("list<int>"), [1, 2])).payload
        == {}
    )
    assert all(cql.answer(f"SELECT v FROM t WHERE k = {k} AND c = 1").payload == {} for k in range(20)), (
        "a driver routes no literal"
    )
    cql.session.tablet_routing = False
    assert all(execute(cql, read, number(k)).payload == {} for k in range(20))


# ---- pages


def test_a_paging_state_says_where_to_go_on() -> None:
    state = PagingState(format=PAGING_STATE_FORMAT, position=b"position", left=5, prefix=b"prefix", partition_rows=2)
    assert decode_paging_state(encode_paging_state(state)) == state


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"junk", msgspec.msgpack.encode([1]), msgspec.msgpack.encode([9, b"", None]), b"\x93\x01\x02\x03"],
)
def test_damaged_paging_states(cql: Cql, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Invalid value for the paging state"):
        cql.run("SELECT v FROM t", page_size=5, paging_state=data)


def test_the_paging_state_of_another_table_is_refused(cql: Cql) -> None:
    cql.run("CREATE TABLE u (k int, c int, v int, PRIMARY KEY (k, c))")
    for k in range(6):
        cql.run(f"INSERT INTO t (k, c, v) VALUES ({k}, 1, 1)")
    state = cql.found("SELECT v FROM t", page_size=2).paging_state
    for text in ("SELECT v FROM u", "SELECT v FROM u WHERE k = 3"):
        with pytest.raises(InvalidRequest, match="damaged or belongs to another table"):
            cql.rows(text, page_size=100, paging_state=state)


def test_pages_have_no_more_rows_than_asked_for(cql: Cql) -> None:
    for c in range(7):
        cql.run(f"INSERT INTO t (k, c, v) VALUES (1, {c}, {c})")
    assert [len(page) for page in cql.pages("SELECT v FROM t WHERE k = 1", 3)][:2] == [3, 3]
    assert [len(page) for page in cql.pages("SELECT v FROM t LIMIT 4", 3)] == [3, 1]
    assert cql.found("SELECT v FROM t LIMIT 3", page_size=3).paging_state is None
    assert cql.found("SELECT v FROM t", page_size=None).paging_state is None


def test_a_long_timeout_reaches_the_router_which_caps_it(cql: Cql, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap itself: `tests/unit/request/test_router.py`."""
    write = cql.rows_store.write
    timeouts_ms: list[int] = []

    def noted(mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int) -> "asyncio.Future[None]":
        timeouts_ms.append(timeout_ms)
        return write(mutations, level, timeout_ms)

    monkeypatch.setattr(cql.rows_store, "write", noted)
    cql.run("INSERT INTO t (k, c, v) VALUES (1, 1, 1) USING TIMEOUT 1000h")
    assert timeouts_ms == [1_000 * 3_600_000]


def test_the_tokens_of_a_batch_count_together(cql: Cql) -> None:
    cql.run("CREATE TABLE many (k int PRIMARY KEY)")
    cql.executor = replace(cql.executor, limits=NodeLimits(cql_tokens_max=30))
    items = [BatchItem("INSERT INTO many (k) VALUES (1)", []) for _ in range(3)]
    assert cql.batch(*items[:2]).result == Void()
    with pytest.raises(TooLarge, match=r"limits\.cql_tokens_max"):
        cql.batch(*items)
    cql.executor = replace(cql.executor, limits=DEFAULT_LIMITS)
    assert cql.rows("SELECT k FROM many") == [(1,)]


# ---- clocks

INSERT = "INSERT INTO t (k, c, v) VALUES (1, 2, 3)"
TOO_FAR_US = NOW_US + DEFAULT_LIMITS.timestamp_ahead_max_ms * 1000 + 1


@pytest.mark.parametrize(
    "text",
    [
        f"{INSERT} USING TIMESTAMP {(1 << 63) - 1}",
        f"{INSERT} USING TIMESTAMP {TOO_FAR_US}",
        f"DELETE FROM t USING TIMESTAMP {TOO_FAR_US} WHERE k = 1",
        f"BEGIN BATCH USING TIMESTAMP {TOO_FAR_US} {INSERT}; APPLY BATCH",
        f"BEGIN BATCH {INSERT} USING TIMESTAMP {TOO_FAR_US}; APPLY BATCH",
    ],
)
def test_a_timestamp_that_no_clock_reaches_for_days_is_refused(cql: Cql, text: str) -> None:
    with pytest.raises(InvalidRequest, match=str(NOW_US)):
        cql.run(text)
    assert cql.rows("SELECT * FROM t") == []


def test_a_node_whose_clock_is_wrong_takes_only_writes_with_a_timestamp(cql: Cql) -> None:
    cql.timestamps.set_clock_ahead(DEFAULT_LIMITS.timestamp_ahead_max_ms + 1)
    for text in (INSERT, "DELETE FROM t WHERE k = 1", f"BEGIN BATCH {INSERT}; APPLY BATCH"):
        with pytest.raises(Unavailable, match="ahead of the clocks of most nodes"):
            cql.run(text)
    assert cql.rows("SELECT * FROM t") == []
    cql.run(f"{INSERT} USING TIMESTAMP 5")
    assert len(cql.rows("SELECT * FROM t")) == 1

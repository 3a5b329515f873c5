"""The fast path for a row by its full key returns the same as the plan."""

import asyncio

import pytest
from tests.unit.cql.world import Cql, python_rows

from ebla.cql.executor import PendingResponse
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import SelectStatement
from ebla.cql.plan.point_select import PointSelectPlan, point_select
from ebla.cql.plan.select_plan import plan_select
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest
from ebla.model.values import encode
from ebla.request.router_types import ReadPage, ReadQuery
from ebla.wire.cql.messages import CqlResponse, QueryParameters, Rows

TABLE = """CREATE TABLE ks.t (p1 int, p2 text, c1 int, c2 text, v int, w text, m map<int, text>, f frozen<list<int>>,
PRIMARY KEY ((p1, p2), c1, c2)) WITH CLUSTERING ORDER BY (c1 DESC, c2 ASC)"""
KEY = "p1 = 1 AND p2 = 'a' AND c1 = 2 AND c2 = 'b'"


def let_reads_wait(cql: Cql, monkeypatch: pytest.MonkeyPatch) -> None:
    read = cql.rows_store.read

    async def waiting(query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage:
        await asyncio.sleep(0)
        return await read(query, level, timeout_ms)

    monkeypatch.setattr(cql.rows_store, "read", waiting)


@pytest.fixture
def cql() -> Cql:
    made = Cql()
    made.run(TABLE)
    return made


def short_way(cql: Cql, text: str) -> PointSelectPlan | None:
    parsed = parse(text)
    assert isinstance(parsed.statement, SelectStatement)
    table = cql.view.current.snapshot.table_named("ks", "t")
    assert table is not None
    return point_select(plan_select(parsed.statement, cql.view.current.schemas[table.id], parsed.markers))


def at_once(cql: Cql, text: str, parameters: QueryParameters | None = None) -> Rows:
    async def begin() -> CqlResponse:
        started = cql.executor.begin_query(cql.session, text, parameters or QueryParameters())
        assert isinstance(started, CqlResponse), "it needs no task"
        return started

    result = asyncio.run(begin()).result
    assert isinstance(result, Rows)
    return result


@pytest.mark.parametrize("shown", ["*", "w, v", "c2, p2, w", "v", "f, m, p1", "c1, c2", "v AS other"])
@pytest.mark.parametrize(
    "writes",
    [
        ["INSERT INTO t (p1, p2, c1, c2, v, w) VALUES (1, 'a', 2, 'b', 7, 'x')"],
        ["INSERT INTO t (p1, p2, c1, c2, v) VALUES (1, 'a', 2, 'b', 7)"],
        ["INSERT INTO t (p1, p2, c1, c2) VALUES (1, 'a', 2, 'b')"],
        [f"UPDATE t SET w = 'only' WHERE {KEY}"],
        [f"UPDATE t USING TTL 1000 SET w = 'for a while', v = 3 WHERE {KEY}"],
        [f"UPDATE t SET m[3] = 'three', f = [1, 2] WHERE {KEY}"],
        ["INSERT INTO t (p1, p2, c1, c2, v, w) VALUES (1, 'a', 2, 'b', 7, 'x')", f"DELETE v FROM t WHERE {KEY}"],
        ["INSERT INTO t (p1, p2, c1, c2, v, w) VALUES (1, 'a', 2, 'b', 7, 'x')", f"DELETE FROM t WHERE {KEY}"],
        ["INSERT INTO t (p1, p2, c1, c2, v, w) VALUES (1, 'a', 2, 'b', 7, 'x')", "ALTER TABLE t ADD added int"],
        [],
    ],
    ids=lambda writes: str(len(writes)),
)
def test_it_shows_what_the_plan_shows(cql: Cql, shown: str, writes: list[str]) -> None:
    for write in writes:
        cql.run(write)
    text = f"SELECT {shown} FROM ks.t WHERE {KEY}"
    assert short_way(cql, text) is not None
    found = at_once(cql, text)
    assert python_rows(found) == cql.rows(text)
    assert found.columns == cql.found(text).columns


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM ks.t WHERE p1 = 1 AND p2 = 'a'",
        "SELECT * FROM ks.t WHERE p1 = 1 AND p2 = 'a' AND c1 = 2 AND c2 > 'a'",
        "SELECT * FROM ks.t WHERE p1 = 1 AND p2 = 'a' AND c1 = 2 AND c2 IN ('a', 'b')",
        "SELECT * FROM ks.t WHERE p1 IN (1, 2) AND p2 = 'a' AND c1 = 2 AND c2 = 'b'",
        f"SELECT * FROM ks.t WHERE {KEY} LIMIT 1",
        f"SELECT * FROM ks.t WHERE {KEY} PER PARTITION LIMIT 1",
        f"SELECT count(*) FROM ks.t WHERE {KEY}",
        f"SELECT writetime(v) FROM ks.t WHERE {KEY}",
        f"SELECT v, v FROM ks.t WHERE {KEY}",
        f"SELECT token(p1, p2) FROM ks.t WHERE {KEY}",
        f"SELECT v FROM ks.t WHERE {KEY} AND v = 3 ALLOW FILTERING",
        "SELECT * FROM ks.t",
    ],
)
def test_other_statements_have_no_short_way(cql: Cql, text: str) -> None:
    assert short_way(cql, text) is None


def test_static_columns_leave_no_short_way(cql: Cql) -> None:
    cql.run("ALTER TABLE t ADD s int static")
    assert short_way(cql, f"SELECT v FROM ks.t WHERE {KEY}") is None


def test_keys_that_are_bound(cql: Cql) -> None:
    cql.run("INSERT INTO t (p1, p2, c1, c2, v) VALUES (1, 'a', 2, 'b', 7)")
    text = "SELECT v, c1 FROM ks.t WHERE p1 = ? AND p2 = ? AND c1 = ? AND c2 = ?"
    one, two = encode(SCALARS["int"], 1), encode(SCALARS["int"], 2)
    found = at_once(cql, text, QueryParameters(values=[one, b"a", two, b"b"]))
    assert python_rows(found) == [(7, 2)]
    assert python_rows(at_once(cql, text, QueryParameters(values=[one, b"a", two, b"c"]))) == []
    for missing in (None, b"\0"):
        with pytest.raises(InvalidRequest):
            cql.executor.begin_query(cql.session, text, QueryParameters(values=[one, b"a", missing, b"b"]))


def test_what_cannot_be_read_at_once_goes_on_as_a_task(cql: Cql, monkeypatch: pytest.MonkeyPatch) -> None:
    cql.run("INSERT INTO t (p1, p2, c1, c2, v) VALUES (1, 'a', 2, 'b', 7)")
    let_reads_wait(cql, monkeypatch)
    for text in (f"SELECT v FROM ks.t WHERE {KEY}", "SELECT v FROM ks.t WHERE p1 = 1 AND p2 = 'a'"):

        async def begun(text: str = text) -> CqlResponse:
            started = cql.executor.begin_query(cql.session, text, QueryParameters())
            assert not isinstance(started, CqlResponse | PendingResponse)
            return await started

        result = asyncio.run(begun()).result
        assert isinstance(result, Rows)
        assert python_rows(result) == [(7,)]


def test_a_request_given_up_before_its_task_began_leaves_nothing_behind(
    cql: Cql, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_reads_wait(cql, monkeypatch)
    started = cql.executor.begin_query(cql.session, f"SELECT v FROM ks.t WHERE {KEY}", QueryParameters())
    assert not isinstance(started, CqlResponse | PendingResponse)
    started.close()

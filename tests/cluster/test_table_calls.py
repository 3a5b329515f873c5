"""The calls of a Spark job to real nodes, over a driver's connection: describe, read, write, and give up tables."""

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pytest
from cassandra.cluster import Cluster, Session
from tests.cluster.conftest import LocalNodes, eventually

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError, Overloaded, Refused, Stale
from ebla.model.identity import AttemptId, SessionId
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import TableSchema
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.columns.load_encoding import WriteStamp, encode_upserts
from ebla.storage.merge.chunk_merge import sort_rows
from ebla.transfers.flight_client import FlightClient
from ebla.wire.errors import error_from_frame
from ebla.wire.frames import encode
from ebla.wire.table_calls import (
    ABORT_WRITE,
    CLOSE_READ,
    COMMIT_WRITE,
    DESCRIBE_TABLE,
    OPEN_READ,
    OPEN_WRITE,
    AbortWriteRequest,
    CallAnswer,
    CallRequest,
    CloseReadRequest,
    CommitWriteAnswer,
    CommitWriteRequest,
    DescribeTableAnswer,
    DescribeTableRequest,
    OpenReadRequest,
    OpenWriteRequest,
    ReadId,
    StagedRun,
    StagingPlan,
    TableCall,
)

NODES = 3
QUORUM = ConsistencyLevel.LOCAL_QUORUM
Q = TypeVar("Q")
A = TypeVar("A")


def call(session: Session, which: TableCall[Q, A], request: Q, deadline_ms: int = 60_000) -> A:
    payload = encode(CallRequest(deadline_ms, encode(request)))
    prepared = session.prepare(f"CALL ebla.{which.name}(?)")
    rows = session.execute(prepared, (payload,), timeout=deadline_ms / 1000 + 5).all()
    answer = msgspec.msgpack.decode(rows[0].answer, type=CallAnswer)
    if answer.failure is not None:
        raise error_from_frame(answer.failure)
    found: Any = msgspec.msgpack.decode(answer.answer, type=which.answer)
    return found  # type: ignore[no-any-return]  # decoded as what the call answers


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    data: Path = tmp_path_factory.mktemp("calls") / "data"
    nodes = LocalNodes(data, NODES, ("limits.table_write_jobs_max=2",))
    try:
        nodes.start_all()
        connected: list[Session] = []
        eventually(lambda: _connect(nodes.nodes[0].options.address, connected), "a node takes clients")
        made = connected[0]
        with made.cluster:
            made.execute("CREATE KEYSPACE t WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
            made.execute(
                "CREATE KEYSPACE v WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 2} "
                "AND tablets = {'enabled': false}"
            )
            for keyspace in ("t", "v"):
                made.execute(f"CREATE TABLE {keyspace}.rows (k bigint PRIMARY KEY, v text)")
            yield made
    finally:
        nodes.end_all()


def _connect(address: str, connected: list[Session]) -> bool:
    """With another cluster object each time: one that could not connect is of no use any more."""
    cluster = Cluster([address])
    try:
        connected.append(cluster.connect())
    except Exception:  # not there yet
        cluster.shutdown()
        return False
    return True


def describe(session: Session, keyspace: str, table: str = "rows") -> DescribeTableAnswer:
    return call(session, DESCRIBE_TABLE, DescribeTableRequest(keyspace, table))


def opening(schema: TableSchema, job: str, **others: Any) -> OpenWriteRequest:
    return OpenWriteRequest(session=SessionId(uuid.uuid4()), table=schema.id, level=QUORUM, job=job, **others)


def stage(plan: StagingPlan, rows: dict[int, str]) -> list[StagedRun]:
    """Does what tasks do: encode with the job's timestamp, split by route, put to every target."""
    batch = pa.record_batch({"k": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.string())})
    stamp = WriteStamp(timestamp_us=plan.timestamp_us, at_s=0)
    stored = sort_rows(plan.schema, *encode_upserts(plan.schema, batch, stamp))
    by_target: dict[int, list[int]] = {}
    for place, key in enumerate(stored["key"].to_pylist()):
        for route in plan.routes:
            if decode_token(key[:8]) in route.range:
                for number in route.targets:
                    by_target.setdefault(number, []).append(place)
    runs = []
    with FlightClient(plan.authority) as client:
        for number, places in by_target.items():
            target, attempt = plan.targets[number], AttemptId(uuid.uuid4())
            file = client.put_rows(target, attempt, [stored.take(pa.array(places))])
            runs.append(
                StagedRun(host=target.host, transfer=target.transfer, attempt=attempt, file=file, rows=len(places))
            )
    return runs


def commit(session: Session, asked: OpenWriteRequest, plan: StagingPlan, runs: list[StagedRun]) -> CommitWriteAnswer:
    request = CommitWriteRequest(
        session=asked.session,
        table=asked.table,
        job=asked.job,
        level=asked.level,
        runs=tuple(runs),
        targets=plan.targets,
        batch=asked.batch,
    )
    return call(session, COMMIT_WRITE, request)


def test_a_table_is_described(session: Session) -> None:
    found = describe(session, "t")
    assert [column.name for column in found.schema.columns] == ["k", "v"]
    assert b"BEGIN CERTIFICATE" in found.authority
    assert not found.is_cdc_enabled
    with pytest.raises(EblaError, match="no table 'nothing'"):
        describe(session, "t", "nothing")


@pytest.mark.parametrize("keyspace", ["t", "v"])
def test_a_read_is_opened_over_the_whole_ring(session: Session, keyspace: str) -> None:
    schema = describe(session, keyspace).schema
    read = ReadId(uuid.uuid4())
    plan = call(session, OPEN_READ, OpenReadRequest(read=read, table=schema.id, level=QUORUM))
    assert len({source.host for source in plan.sources}) == NODES
    assert {piece.needed for piece in plan.pieces} == {2}
    ends = [piece.range.end for piece in plan.pieces]
    assert [piece.range.start for piece in plan.pieces[1:]] == ends[:-1]
    assert (plan.pieces[0].range.start, ends[-1]) == (-(2**63), 2**63 - 1)
    asked = Counter(place for piece in plan.pieces for place in piece.sources[: piece.needed])
    assert len(asked) == NODES, "reads are spread"
    call(session, CLOSE_READ, CloseReadRequest(read, schema.id))


@pytest.mark.parametrize("keyspace", ["t", "v"])
def test_a_job_writes_what_is_seen_afterwards_and_only_once(session: Session, keyspace: str) -> None:
    schema = describe(session, keyspace).schema
    asked = opening(schema, f"load-{keyspace}")
    plan = call(session, OPEN_WRITE, asked)
    assert plan.state is WriteJobState.OPEN
    assert call(session, OPEN_WRITE, asked).targets[0].transfer == plan.targets[0].transfer, "asked again: the same"
    rows = {number: f"value {number}" for number in range(200)}
    answer = commit(session, asked, plan, stage(plan, rows))
    assert (answer.lacking, answer.left_to_repair) == ((), ())
    found = session.execute(f"SELECT k, v, writetime(v) FROM {keyspace}.rows").all()
    assert {row.k: row.v for row in found} == rows
    assert {row[2] for row in found} == {plan.timestamp_us}
    again = call(session, OPEN_WRITE, opening(schema, f"load-{keyspace}"))
    assert (again.state, again.timestamp_us, again.targets) == (WriteJobState.DONE, plan.timestamp_us, ())


def test_a_job_that_is_given_up_leaves_nothing_and_can_be_run_again(session: Session) -> None:
    schema = describe(session, "t").schema
    asked = opening(schema, "given-up")
    plan = call(session, OPEN_WRITE, asked)
    runs = stage(plan, {9_999: "never"})
    call(session, ABORT_WRITE, AbortWriteRequest(asked.session, asked.table, asked.job))
    with pytest.raises(Stale, match="no row of the job is visible"):
        commit(session, asked, plan, runs)
    assert session.execute("SELECT v FROM t.rows WHERE k = 9999").all() == []
    second = opening(schema, "given-up")
    again = call(session, OPEN_WRITE, second)
    assert (again.state, again.timestamp_us) == (WriteJobState.OPEN, plan.timestamp_us)
    commit(session, second, again, stage(again, {9_999: "now"}))
    assert [row.v for row in session.execute("SELECT v FROM t.rows WHERE k = 9999")] == ["now"]


def test_a_stream_goes_on_behind_the_last_batch(session: Session) -> None:
    schema = describe(session, "v").schema
    for batch in range(3):
        asked = opening(schema, "stream", batch=batch)
        plan = call(session, OPEN_WRITE, asked)
        commit(session, asked, plan, stage(plan, {10_000 + batch: "batch"}))
        assert call(session, OPEN_WRITE, opening(schema, "stream", batch=batch)).state is WriteJobState.DONE
    assert session.execute("SELECT count(*) FROM v.rows WHERE k IN (10000, 10001, 10002)").one()[0] == 3


def test_more_jobs_than_are_allowed_are_refused_in_words(session: Session) -> None:
    schema = describe(session, "t").schema
    asked = [opening(schema, f"many-{number}") for number in range(3)]
    for one in asked[:2]:
        call(session, OPEN_WRITE, one)
    with pytest.raises(Overloaded, match="2 jobs write to this table already"):
        call(session, OPEN_WRITE, asked[2])
    for one in asked[:2]:
        call(session, ABORT_WRITE, AbortWriteRequest(one.session, one.table, one.job))


def test_a_table_whose_changes_are_captured_takes_no_layers(session: Session) -> None:
    session.execute("CREATE TABLE t.captured (k int PRIMARY KEY) WITH cdc = {'enabled': true}")
    found = describe(session, "t", "captured")
    assert found.is_cdc_enabled
    with pytest.raises(Refused, match="captured"):
        call(session, OPEN_WRITE, opening(found.schema, "any"))

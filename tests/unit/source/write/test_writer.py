"""What Spark calls for a write, with nodes that are played."""

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from tests.unit.source.write_fakes import HOSTS, JOB, FakeCommit, FakeContact, FakeNodes, plan_of
from tests.unit.storage.random_rows import column, table

from ebla.model.errors import EblaError, InternalError, InvalidRequest
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import ColumnKind
from ebla.model.token import WHOLE_RING
from ebla.source.options import parse_write_options
from ebla.source.write import stream_writer, task_writer, writer
from ebla.source.write.stream_writer import EblaStreamWriter, StreamWriterState, make_stream_writer, stream_batch
from ebla.source.write.write_job import WriteTaskResult
from ebla.source.write.writer import make_writer, task_results, to_commit_message
from ebla.wire.table_calls import CallDone, CommitWriteAnswer, DescribeTableAnswer, OpenWriteRequest

PICKLER: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]  # of Spark
NARROW = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "text"))
FRAME = StructType([StructField("p", IntegerType()), StructField("v", StringType())])
OPTIONS = {"keyspace": "ks", "table": "t", "small_rows": "0", "password": "secret", "username": "me"}


def batch(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"p": pa.array(range(start, start + count), pa.int32()), "v": pa.array(["v"] * count)})


class World:
    """One contact for all, and nodes behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = FakeNodes()
        self.commits = FakeCommit()
        self.done: set[tuple[str, int | None]] = set()
        self.contact = FakeContact(
            describe_table=lambda _: DescribeTableAnswer(NARROW, b"authority"),
            open_write=self._open,
            commit_write=self._commit,
            abort_write=lambda _: CallDone(),
        )
        for module in (writer, stream_writer):
            monkeypatch.setattr(module, "CqlClient", lambda _: self.contact)
            monkeypatch.setattr(module, "prepare_worker", lambda: None)
        monkeypatch.setattr(task_writer, "FlightClient", lambda _: self.nodes.connect())

    def _open(self, request: OpenWriteRequest) -> Any:
        is_done = (request.job, request.batch) in self.done
        return plan_of(NARROW, WHOLE_RING.split(2), [0, 1], WriteJobState.DONE if is_done else WriteJobState.OPEN)

    def _commit(self, request: Any) -> CommitWriteAnswer:
        answer = self.commits(request)
        self.done.add((request.job, request.batch))
        return answer

    def calls(self, name: str) -> list[Any]:
        return [request for called, request in self.contact.calls if called == name]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def carried(one: Any) -> Any:
    """To another process, as Spark does it."""
    return PICKLER.loads(PICKLER.dumps(one))


def test_a_write_from_its_plan_to_its_commit(world: World) -> None:
    planned = make_writer(OPTIONS | {"job": "j"}, FRAME, False)
    messages = [carried(carried(planned).write(iter([batch(start, 100)]))) for start in (0, 100)]
    carried(planned).commit([*messages, None])
    (request,) = world.calls("commit_write")
    assert request.session == world.calls("open_write")[0].session
    rows = {key for run in request.runs if run.host == HOSTS[1] for key, _ in world.nodes.rows(run)}
    assert len(rows) == 200
    assert request.job == "j"


def test_messages_are_small(world: World) -> None:
    planned = make_writer(OPTIONS, FRAME, False)
    message = planned.write(iter([batch(0, 10_000)]))
    assert len(PICKLER.dumps(message)) < 2_000
    assert b"secret" not in PICKLER.dumps(message)


def test_a_job_that_is_done_reads_its_rows_and_keeps_none(world: World) -> None:
    world.done.add(("j", None))
    planned = make_writer(OPTIONS | {"job": "j"}, FRAME, False)
    message = planned.write(iter([batch(0, 100), batch(100, 5)]))
    assert [one.rows for one in task_results([message])] == [105]
    planned.commit([message])
    planned.abort([message])
    assert world.nodes.puts == []
    assert not world.calls("commit_write") + world.calls("abort_write")


def test_an_abort_closes_the_session(world: World) -> None:
    planned = make_writer(OPTIONS, FRAME, False)
    carried(planned).abort([None, None])
    (request,) = world.calls("abort_write")
    assert request.session == world.calls("open_write")[0].session


def test_a_commit_that_fails_says_that_it_may_be_run_again(world: World) -> None:
    planned = make_writer(OPTIONS | {"job": "j"}, FRAME, False)
    world.commits.answers = [InvalidRequest("the table is gone")]
    with pytest.raises(InvalidRequest, match=r"some of it may be visible: the table is gone; run it again .*job='j'"):
        planned.commit([])


def test_replicas_left_to_repair_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.commits.answers = [CommitWriteAnswer(left_to_repair=(HOSTS[2],))]
    make_writer(OPTIONS, FRAME, False).commit([])
    assert str(HOSTS[2]) in caplog.text


def test_messages_of_tasks_that_failed_are_none() -> None:
    rows = WriteTaskResult(job=JOB, rows=7)
    assert task_results([to_commit_message(rows), None, WriterCommitMessage()]) == [rows]


# ---- streams


class Context:
    """Of a task."""

    def __init__(self, query: str | None, number: int | None) -> None:
        self._values = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": None if number is None else str(number),
        }

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 # Spark's name
        return self._values[name]


@pytest.fixture
def streamed(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[EblaStreamWriter, int], None]:
    def run(planned: EblaStreamWriter, number: int) -> None:
        """One batch, as Spark runs it: tasks, and a commit by a writer of its own."""
        monkeypatch.setattr(TaskContext, "get", lambda: Context("query-7", number))
        messages = [carried(planned).write(iter([batch(start, 50)])) for start in (0, 50)]
        make_stream_writer(OPTIONS, FRAME, False).commit(messages, number)

    assert world is not None
    return run


Stream = Callable[[EblaStreamWriter, int], None]


def test_batches_of_a_stream_are_jobs_known_by_their_number(world: World, streamed: Stream) -> None:
    planned = make_stream_writer(OPTIONS, FRAME, False)
    streamed(planned, 0)
    streamed(planned, 1)
    commits = world.calls("commit_write")
    assert [(one.job, one.batch) for one in commits] == [("stream-query-7", 0), ("stream-query-7", 1)]
    assert commits[0].session != commits[1].session
    sessions = {one.session for one in world.calls("open_write") if one.batch == 0}
    assert sessions == {commits[0].session}, "all tasks of a batch and its commit have one session"
    assert all(len({run.attempt for run in one.runs}) == 2 * 2 * 2 for one in commits)


def test_a_batch_that_ended_well_is_not_written_again(world: World, streamed: Stream) -> None:
    streamed(make_stream_writer(OPTIONS, FRAME, False), 3)
    put = len(world.nodes.puts)
    streamed(make_stream_writer(OPTIONS, FRAME, False), 3)
    assert len(world.nodes.puts) == put
    assert len(world.calls("commit_write")) == 1


def test_a_batch_that_failed_has_another_session_when_it_is_run_again(world: World, streamed: Stream) -> None:
    world.commits.answers = [InvalidRequest("no")]
    with pytest.raises(EblaError):
        streamed(make_stream_writer(OPTIONS, FRAME, False), 3)
    streamed(make_stream_writer(OPTIONS, FRAME, False), 3)
    first, second = world.calls("commit_write")
    assert (first.job, first.batch) == (second.job, second.batch)
    assert first.session != second.session
    assert not {run.attempt for run in first.runs} & {run.attempt for run in second.runs}


def test_a_stream_may_have_a_name(world: World, streamed: Stream) -> None:
    streamed(make_stream_writer(OPTIONS | {"job": "clicks"}, FRAME, False), 0)
    assert world.calls("commit_write")[0].job == "clicks"


def test_an_empty_batch_asks_nothing(world: World) -> None:
    planned = make_stream_writer(OPTIONS, FRAME, False)
    planned.commit([None], 4)
    planned.abort([None], 4)
    assert [name for name, _ in world.contact.calls] == ["describe_table"]


def test_an_abort_of_a_batch_closes_its_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context("query-7", 2))
    planned = make_stream_writer(OPTIONS, FRAME, False)
    message = planned.write(iter([batch(0, 5)]))
    make_stream_writer(OPTIONS, FRAME, False).abort([message, None], 2)
    assert world.calls("abort_write")[0].session == world.calls("open_write")[0].session


def test_complete_mode_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="output mode complete"):
        make_stream_writer(OPTIONS, FRAME, True)
    assert world.contact.calls == []


def test_a_task_that_does_not_know_its_batch_fails() -> None:
    with pytest.raises(InternalError, match="which batch"):
        stream_batch(StreamWriterState(parse_write_options(OPTIONS), NARROW.id, uuid.uuid4()), "query", None)

"""What tasks say comes back as results, or as an error that a person can read."""

import uuid

import pytest

from ebla.model.errors import ConnectionLost, Refused, Stale
from ebla.model.identity import AttemptId, TransferId
from ebla.model.transfers import MoveResult, StagedFile
from ebla.pipeline.task_outcome import (
    TaskFailed,
    is_final,
    java_cause,
    missing_package,
    outcome_batch,
    parse_failure,
    results_of,
)
from ebla.ports.transfer_engine import WorkFailed

MOVED = MoveResult(
    transfer=TransferId(uuid.UUID(int=1)),
    attempt=AttemptId(uuid.UUID(int=2)),
    files=(StagedFile(name="0/f", size_bytes=5, checksum=7),),
    rows=3,
    size_bytes=5,
)
SPARK_SAYS = """\
An error occurred while calling o104.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 5.0 (TID 12) (127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "worker.py", line 1
{cause}

	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Caused by: java.lang.RuntimeException: something of Java's
"""


def test_what_was_moved_comes_back() -> None:
    batch = outcome_batch(lambda: [MOVED, MOVED])
    assert batch.column("transfer").to_pylist() == [str(MOVED.transfer)] * 2
    assert batch.column("bytes").to_pylist() == [5, 5]
    assert results_of(batch.column("outcome").to_pylist()) == [MOVED, MOVED]


def test_a_failure_that_every_attempt_would_meet_ends_the_job() -> None:
    def refused() -> list[MoveResult]:
        raise Refused("session 7 is closed")

    batch = outcome_batch(refused)
    with pytest.raises(WorkFailed, match="a task failed: session 7 is closed"):
        results_of(batch.column("outcome").to_pylist())


@pytest.mark.parametrize("error", [ConnectionLost("a node went away"), OSError("no space left")])
def test_another_attempt_is_made_after_other_failures(error: Exception) -> None:
    def broken() -> list[MoveResult]:
        raise error

    with pytest.raises(TaskFailed, match=str(error)):
        outcome_batch(broken)


def test_the_cause_is_found_in_what_spark_says() -> None:
    raised = TaskFailed(ConnectionLost('the "node" went away\nin the middle'))
    text = SPARK_SAYS.format(cause=f"ebla.pipeline.task_outcome.TaskFailed: {raised}")
    assert parse_failure(text).kind == "ConnectionLost"
    assert parse_failure(text).message == 'the "node" went away\nin the middle'


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("ValueError: no such thing", "ValueError: no such thing"),
        ("ModuleNotFoundError: No module named 'msgspec'", "the Python that runs tasks lacks the package msgspec"),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "the Python process of a task ended in each attempt",
        ),
    ],
)
def test_other_failures_are_told_by_their_last_line(cause: str, message: str) -> None:
    assert parse_failure(SPARK_SAYS.format(cause=cause)).message == message


def test_any_text_gives_one_line() -> None:
    assert parse_failure("").message == "no cause given"
    assert parse_failure("first\nsecond").message == "first"
    words = "Job aborted due to stage failure: x, most recent failure: Lost task 0.3 (TID 1): ExecutorLostFailure\nat y"
    assert parse_failure(words).message == "ExecutorLostFailure"


def test_missing_packages_are_named_by_what_is_installed() -> None:
    assert missing_package("ModuleNotFoundError: No module named 'pyarrow.flight'") == "pyarrow"
    assert missing_package("ValueError: x") == ""


def test_only_what_another_try_cannot_mend_is_final() -> None:
    assert is_final(Stale("closed"))
    assert is_final(Refused("forged"))
    assert not is_final(ConnectionLost("gone"))


def test_of_what_java_raised_the_innermost_is_told_without_its_trace() -> None:
    text = """\
An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: could not begin
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:1)
Caused by: java.io.FileNotFoundException: File file:/events does not exist
\tat org.apache.hadoop.fs.RawLocalFileSystem.get(RawLocalFileSystem.java:1)
"""
    assert java_cause(text) == "java.io.FileNotFoundException: File file:/events does not exist"
    assert java_cause("something else\nand more") == "something else"
    assert java_cause("") == "no cause given"

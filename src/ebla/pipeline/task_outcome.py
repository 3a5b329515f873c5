"""What a task runs and returns, and how the driver reads it: results, or the cause of a failure.

A failure that another attempt may not meet is raised, and Spark retries the task. A final one (a closed session, a
refused ticket) is returned like a result, so that the job ends at once. A raised error reaches the driver as text
inside Spark's own texts, so it carries a marked line that the driver finds.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from ebla.model.errors import EblaError, Fault
from ebla.model.transfers import BucketDifference, ComparisonResult, MoveResult, TransferResult
from ebla.ports.transfer_engine import WorkFailed
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.spark_worker import prepare_worker

W = TypeVar("W", bound=msgspec.Struct)

OUTCOME_SCHEMA = "transfer string, attempt string, files int, rows bigint, bytes bigint, outcome binary"
"""The last column has it all; the others are for people who read Spark's pages."""

_ARROW = pa.schema(
    [
        ("transfer", pa.string()), ("attempt", pa.string()), ("files", pa.int32()), ("rows", pa.int64()),
        ("bytes", pa.int64()), ("outcome", pa.binary()),
    ]
)  # fmt: skip

CAUSE_LENGTH_MAX = 500
_CAUSE_MARK = "ebla-cause:"
_CAUSE_LINE = re.compile(re.escape(_CAUSE_MARK) + r"(\[.*\])")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)): (.*)$", re.MULTILINE)
_JAVA_RAISED = re.compile(r"^(?:: |Caused by: )([\w.$]+(?:Error|Exception)\b.*)$", re.MULTILINE)
_STAGE_FAILURE = re.compile(r"most recent failure: (?:Lost task [^:]*: )?([^\n]*)")


@dataclass(frozen=True, kw_only=True)
class SparkTask(Generic[W]):
    """For `mapInArrow`: takes numbers of tasks, and returns what `work` makes of each item of these tasks."""

    kind: type[W]
    work: Callable[[FlightClient, W], pa.RecordBatch]
    tasks: tuple[tuple[bytes, ...], ...]
    """The encoded items of each task: a task decodes only its own."""
    authority: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with FlightClient(self.authority) as client:
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    for item in self.tasks[task]:
                        yield self.work(client, msgspec.msgpack.decode(item, type=self.kind))


class TaskFailure(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    kind: str
    message: str
    transfer: str = ""
    """What the task worked on, if it is known."""


TaskOutcome = MoveResult | BucketDifference | ComparisonResult | TaskFailure
_decoder = msgspec.msgpack.Decoder(TaskOutcome)
_encoder = msgspec.msgpack.Encoder()
_failure_decoder = msgspec.json.Decoder(TaskFailure)


class TaskFailed(Exception):
    """Raised in a task; the driver finds the cause in its text."""

    def __init__(self, error: BaseException, transfer: str = "") -> None:
        super().__init__(f"{_CAUSE_MARK}{msgspec.json.encode(failure_of(error, transfer)).decode()}")


def failure_of(error: BaseException, transfer: str = "") -> TaskFailure:
    return TaskFailure(type(error).__name__, str(error)[:CAUSE_LENGTH_MAX], transfer)


def is_final(error: EblaError) -> bool:
    """Whether every other attempt would fail the same way."""
    return error.fault is Fault.CALLER


def outcome_batch(work: Callable[[], Sequence[MoveResult]], transfer: str = "") -> pa.RecordBatch:
    """What the work of a task returns, or the failure that ends its job. Raises `TaskFailed` for one that another
    attempt may not meet. `transfer`: which it is, for the failure."""
    outcomes: Sequence[MoveResult | TaskFailure]
    try:
        outcomes = work()
    except (EblaError, OSError) as error:
        if not isinstance(error, EblaError) or not is_final(error):
            raise TaskFailed(error, transfer) from error
        outcomes = [failure_of(error, transfer)]
    return pa.RecordBatch.from_pylist([_row(outcome) for outcome in outcomes], schema=_ARROW)


def _row(outcome: MoveResult | TaskFailure) -> dict[str, object]:
    encoded = _encoder.encode(outcome)
    if isinstance(outcome, TaskFailure):
        return {"transfer": "", "attempt": "", "files": 0, "rows": 0, "bytes": 0, "outcome": encoded}
    return {
        "transfer": str(outcome.transfer),
        "attempt": str(outcome.attempt),
        "files": len(outcome.files),
        "rows": outcome.rows,
        "bytes": outcome.size_bytes,
        "outcome": encoded,
    }


def results_of(outcomes: Sequence[bytes]) -> list[TransferResult]:
    """Raises `WorkFailed` if there is a failure among them, with the first."""
    results: list[TransferResult] = []
    for encoded in outcomes:
        outcome = _decoder.decode(encoded)
        if isinstance(outcome, TaskFailure):
            raise work_failed(outcome)
        results.append(outcome)
    return results


def work_failed(failure: TaskFailure) -> WorkFailed:
    return WorkFailed(
        f"a task failed: {failure.message or failure.kind}", cause=failure.kind, transfer=failure.transfer
    )


def parse_failure(text: str) -> TaskFailure:
    """The first cause in Spark's text about a failed job, without stack traces."""
    if found := _CAUSE_LINE.search(text):
        try:
            return _failure_decoder.decode(found.group(1))
        except msgspec.DecodeError:
            pass
    if found := _MISSING.search(text):
        return TaskFailure("ModuleNotFoundError", f"the Python that runs tasks lacks the package {found.group(1)}")
    if "Python worker exited unexpectedly" in text or "Python worker process terminated" in text:
        return TaskFailure("WorkerLost", "the Python process of a task ended in each attempt")
    lines = _LAST_LINE.findall(text)
    raised = [(kind, message) for kind, message in lines if not kind.startswith(("org.", "java.", "scala."))]
    if raised:
        kind, message = raised[-1]
        return TaskFailure(kind.rpartition(".")[2], f"{kind.rpartition('.')[2]}: {message}"[:CAUSE_LENGTH_MAX])
    if found := _STAGE_FAILURE.search(text):
        return TaskFailure("SparkException", found.group(1)[:CAUSE_LENGTH_MAX])
    return TaskFailure("SparkException", (text.strip().splitlines() or ["no cause given"])[0][:CAUSE_LENGTH_MAX])


def java_cause(text: str) -> str:
    """The innermost exception in Java's text, without stack traces; without one, the first line."""
    raised = _JAVA_RAISED.findall(text)
    first = (text.strip().splitlines() or ["no cause given"])[0]
    return str(raised[-1] if raised else first)[:CAUSE_LENGTH_MAX]


def missing_package(text: str) -> str:
    """The package that a task could not import, by Spark's text; empty if it names none."""
    found = _MISSING.search(text)
    return found.group(1).partition(".")[0] if found else ""

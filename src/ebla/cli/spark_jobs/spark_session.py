"""The Spark session of a command: progress while jobs run, and short error messages."""

import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ebla.model.errors import EblaError, Unavailable
from ebla.pipeline.spark_adapter import SparkAdapter
from ebla.pipeline.task_outcome import java_cause, parse_failure

T = TypeVar("T")
PROGRESS_POLL_S = 0.5
STARTED_LOG_LETTERS = 600


class SparkJobFailed(EblaError):
    """A Spark job failed. The message is the short form of Spark's error."""


@contextmanager
def session(settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Java's output goes to a file, which is shown only if Spark does not start."""
    folder = Path(tempfile.mkdtemp(prefix="ebla-spark-"))
    # PySpark logs each error a second time, with full tracebacks.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)
    try:
        spark = _started(dict(settings), folder)
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(settings: dict[str, str], folder: Path) -> SparkSession:
    flags = f"{settings.pop('spark.driver.extraJavaOptions', '')} -Djava.io.tmpdir={folder} -XX:-UsePerfData"
    own = {
        "spark.driver.extraJavaOptions": flags.strip(),
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("ebla")
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    log = folder / "java.log"
    with _quiet(log):
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            java_log = " / ".join(log.read_text(errors="replace").split("\n"))[-STARTED_LOG_LETTERS:]
            raise Unavailable(f"Spark did not start: {_short_message(error)} {java_log}") from None


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Java inherits stderr when it starts, and keeps it."""
    saved = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stderr.flush()
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


class PieceProgress:
    """One line at the bottom of a terminal; elsewhere one line for each finished piece."""

    def __init__(self, what: str, pieces: int, done: int, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._pieces = pieces
        self._done = done
        self._quiet = quiet
        self._has_bar = console.is_terminal and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._progress.add_task(what, total=pieces, completed=done)

    def __enter__(self) -> "PieceProgress":
        if self._has_bar:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_bar:
            self._progress.stop()

    def part_done(self, share: float) -> None:
        """Progress of the current piece."""
        self._progress.update(self._task, completed=self._done + min(share, 1.0))

    def piece_done(self, words: str) -> None:
        self._done += 1
        self.part_done(0.0)
        if not self._has_bar and not self._quiet:
            sys.stderr.write(f"{self._done} of {self._pieces}: {words}\n")


def run_spark_piece(spark: SparkSession, name: str, work: Callable[[], T], progress: PieceProgress) -> T:
    """Raises `SparkJobFailed`. Ctrl-C cancels the running job."""
    adapter = SparkAdapter(spark)
    ended = threading.Event()

    def poll_progress() -> None:
        while not ended.wait(PROGRESS_POLL_S):
            try:
                counts = adapter.counts(name)
            except (Py4JError, OSError, AttributeError):
                return
            if counts.total:
                progress.part_done(counts.done / counts.total)

    poller = threading.Thread(target=poll_progress, daemon=True)
    poller.start()
    try:
        with adapter.jobs(name, name):
            return work()
    except (PySparkException, Py4JError) as error:
        raise SparkJobFailed(_short_message(error)) from None
    except KeyboardInterrupt:
        adapter.cancel(name)
        raise
    finally:
        ended.set()
        poller.join()


def _short_message(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, Py4JJavaError):
        return java_cause(text)
    found = parse_failure(text)
    return found.message or found.kind

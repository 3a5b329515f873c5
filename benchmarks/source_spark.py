"""A user's Spark on this machine, the rows that it reads and writes, and what its processes cost."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from ebla.pipeline.java import find_java, make_java_home

MASTER = "local[2]"
TASKS = 4
SEED = 20_261
DEFINITION = "name text, hits bigint, price {double}, note text, seen timestamp, kind int, code text"
"""Beside the key, a bigint: 8 columns, 120 bytes of values."""

NO_BOUND = str((1 << 31) - 1)
"""Any other has Spark add up the sizes of all columns after each row that it hands to Python, as `docs/spark.md` says
to those whose rows are small."""

Part = str
ResourcesSpent = dict[Part, float]


def new_session(folder: Path, jars: Path | None) -> SparkSession:
    """A setup for jobs of this size: rows go through Java, so its full compiler is enabled."""
    folder.mkdir()
    os.environ["JAVA_HOME"] = str(make_java_home(find_java("", os.environ), folder))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Python caches the bytecode of an installed package. A checkout that forbids this would compile again in each
    # process that Spark or a node starts.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.maxBytesPerBatch": NO_BOUND,
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if jars is not None:
        settings["spark.jars"] = str(jars)
    builder = SparkSession.builder.master(MASTER).appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def make_rows(spark: SparkSession, count: int, tasks: int = TASKS) -> DataFrame:
    """Random text, so that compression gains nothing."""
    letters = fn.sha2(fn.concat(fn.col("id").cast("string"), fn.lit(str(SEED))), 256)
    return spark.range(0, count, 1, tasks).select(
        "id",
        fn.substring(letters, 1, 32).alias("name"),
        (fn.col("id") * 7919 % 1_000_003).alias("hits"),
        (fn.col("id") % 100_000 / 7.0).alias("price"),
        fn.substring(letters, 25, 40).alias("note"),
        fn.timestamp_millis(fn.lit(1_700_000_000_000) + fn.col("id") * 37).alias("seen"),
        (fn.col("id") % 97).cast("int").alias("kind"),
        fn.substring(letters, 3, 12).alias("code"),
    )


def read_whole(frame: DataFrame) -> None:
    """Reads every row and column, and discards them."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True)
class Timed:
    seconds: float
    spent: Mapping[Part, float]
    """CPU seconds per part."""

    @property
    def cpu_s(self) -> float:
        return sum(self.spent.values())


class _Ledger:
    """CPU of processes that come and go below another. One that was waited for is in its parent's books. One whose
    parent ended before it, or does not wait for its children as Spark's daemons do not, is in no books, and stays here
    as it was last seen: what it did between the last look and its end is lost."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], tuple[int, float]] = {}

    def spent_s(self, root: psutil.Process) -> float:
        there: dict[tuple[int, float], tuple[int, float]] = {}
        with suppress(psutil.NoSuchProcess):
            for one in root.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    there[one.pid, one.create_time()] = (one.ppid(), own_s(one) + ended_s(one))
        waiting = {pid for pid in (root.pid, *(pid for pid, _ in there)) if waits_for_children(pid)}
        gone = {key: seen for key, seen in self._known.items() if key not in there and seen[0] not in waiting}
        self._known = gone | there
        return sum(spent for _, spent in self._known.values())


def waits_for_children(pid: int) -> bool:
    """If a process ignores SIGCHLD, the kernel drops its children together with their CPU time."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return not int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1
    return False


_tasks = _Ledger()


def spark_spent() -> ResourcesSpent:
    """CPU of the session's processes so far: this one, which plans and commits, Java, and the Python tasks."""
    spent = {"driver": own_s(psutil.Process()), "java": 0.0, "python_tasks": 0.0}
    for child in psutil.Process().children():
        if name_of(child) == "java":
            spent["java"] += own_s(child)
            spent["python_tasks"] += ended_s(child) + _tasks.spent_s(child)
    return spent


def below_s(process: psutil.Process) -> float:
    """Of all descendants, including those that ended and were waited for."""
    with suppress(psutil.NoSuchProcess):
        return sum(own_s(child) + ended_s(child) for child in process.children(recursive=True))
    return 0.0


def own_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def ended_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.children_user + times.children_system)
    return 0.0


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def timed(work: Callable[[], object], parts: Callable[[], ResourcesSpent]) -> Timed:
    before = parts()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return Timed(seconds, {part: spent - before.get(part, 0.0) for part, spent in parts().items()})

"""A user's Spark and a driver's session beside real nodes, for tests of jobs over whole tables; and jobs that pause
half-way until a test continues them."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ConsistencyLevel, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy
from cassandra.query import tuple_factory
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from tests.cluster.conftest import eventually
from tests.pipeline.served_nodes import PATIENCE_S, ServedNodes
from tests.pipeline.small_node import spark_environment

from ebla.pipeline.spark_session import forget_spark

TASK_TRIES = 3
MASTER = f"local[2,{TASK_TRIES}]"
TABLETS = 8
KEYSPACES = {
    "jobs": f"'dc1': 3}} AND tablets = {{'initial': {TABLETS}}}",
    "jobs_vn": "'dc1': 3} AND tablets = {'enabled': false}",
    "jobs_one": f"'dc1': 1}} AND tablets = {{'initial': {TABLETS}}}",
}
"""With three replicas on tablets and on vnodes, and with one."""

Rows = list[tuple[Any, ...]]


@contextmanager
def _environment(around: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(around)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def user_spark(folder: Path, master: str, **settings: str) -> Iterator[SparkSession]:
    """A user's session in this process; there may be only one at a time, and none is left afterwards."""
    builder = SparkSession.builder.master(master)
    for name, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        **settings,
    }.items():
        builder = builder.config(name, value)
    with _environment(spark_environment(folder)):
        session = builder.getOrCreate()
    gateway = SparkContext._gateway
    assert gateway is not None
    try:
        yield session
    finally:
        session.stop()
        forget_spark(None)
        process = gateway.proc
        process.stdin.close()
        assert process.wait(60) is not None
        process.stdin = None


class OneSpark:
    """The only session of a process; kept for the next module that wants the same settings."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._known: dict[tuple[object, ...], SparkSession] = {}

    def user(self, master: str, **settings: str) -> SparkSession:
        wanted = (master, *sorted(settings.items()))
        if wanted not in self._known:
            self.clear()
            self._known[wanted] = self._open.enter_context(user_spark(self._folder(), master, **settings))
        return self._known[wanted]

    def clear(self) -> None:
        self._known.clear()
        self._open.close()


class SourceJobs:
    """Own keyspaces, dropped at the end together with the snapshots that reads have kept."""

    def __init__(self, nodes: ServedNodes, spark: SparkSession) -> None:
        self.spark = spark
        places = [node.options for node in nodes.local.nodes]
        self.contact = ",".join(f"{node.address}:{node.ports.cql}" for node in places)
        profile = ExecutionProfile(
            RoundRobinPolicy(),
            consistency_level=ConsistencyLevel.QUORUM,
            request_timeout=PATIENCE_S,
            row_factory=tuple_factory,
        )
        self._driver: Any = Cluster(
            [node.address for node in places],
            port=places[0].ports.cql,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=4,
            reconnection_policy=ConstantReconnectionPolicy(0.2, None),
        )

    def __enter__(self) -> "SourceJobs":
        self._session: Any = self._driver.connect()
        for name, options in KEYSPACES.items():
            self.cql(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy', {options}")
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            for name in KEYSPACES:
                self.cql(f"DROP KEYSPACE {name}")
        finally:
            self._driver.shutdown()

    def cql(self, text: str, *values: object) -> Rows:
        """The driver substitutes the values as literals for `%s`."""
        return [tuple(row) for row in self._session.execute(text, values or None)]

    def prepared(self, text: str, rows: Sequence[Sequence[object]]) -> None:
        statement = self._session.prepare(text)
        for answer in [self._session.execute_async(statement, row) for row in rows]:
            answer.result()

    # ---- Spark

    def frame(self, rows: Sequence[Sequence[object]], schema: str, tasks: int = 2) -> DataFrame:
        return self.spark.createDataFrame(self.spark.sparkContext.parallelize([*map(tuple, rows)], tasks), schema)

    def read(self, table: str, **options: str) -> DataFrame:
        return self.spark.read.format("ebla").options(contact=self.contact, table=table, **options).load()

    def write(self, frame: DataFrame, table: str, mode: str = "append", **options: str) -> None:
        given = {name.replace("__", "."): value for name, value in options.items()}
        # In a thread without its own session Spark does not look for Python data sources.
        jvm: Any = self.spark._jvm
        jvm.SparkSession.setActiveSession(self.spark._jsparkSession)
        frame.write.format("ebla").options(contact=self.contact, table=table, **given).mode(mode).save()


class Halt:
    """A point in a task's function where every task waits, once per name, until the test continues it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def is_reached(self, *names: str) -> bool:
        return all((self.folder / name).exists() for name in names)

    def let_go(self) -> None:
        (self.folder / "go").touch()


def halting(folder: str, name: str, after: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: passes batches through and halts after some of them. Nested, so that it is pickled by value."""
    patience_s = PATIENCE_S

    def mapped(batches: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for batch in batches:
            yield batch
            count += 1
            if count == after:
                open(f"{folder}/{name}", "w").close()
                deadline = time.monotonic() + patience_s
                while not os.path.exists(f"{folder}/go"):
                    assert time.monotonic() < deadline, "it was not released in time"
                    time.sleep(0.05)
        assert count >= after, f"{count} batches came"

    return mapped


class Beside:
    """Runs work in a thread; waits for its end and raises its failure in the test."""

    def __init__(self, *work: Callable[[], object]) -> None:
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in work]

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the test's thread
            self._failures.append(error)

    def __enter__(self) -> "Beside":
        for thread in self._threads:
            thread.start()
        return self

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        eventually(lambda: self._failures or condition(), what, PATIENCE_S)
        assert not self._failures, self._failures

    def __exit__(self, *failure: object) -> None:
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
        if failure[0] is None or self._failures:
            assert not self._failures, self._failures
            assert not any(thread.is_alive() for thread in self._threads), "a job does not end"

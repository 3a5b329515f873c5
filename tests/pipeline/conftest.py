"""One Flight rig and one set of nodes for all tests of a run: starting Spark takes seconds."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.conftest import LocalNodes, compiled_once
from tests.pipeline.clusters import PipelineCluster, running_cluster
from tests.pipeline.engines import RunningEngine
from tests.pipeline.flight_rig import FlightRig, LoopThread
from tests.pipeline.served_nodes import NODES, STEADY, ServedNodes
from tests.pipeline.small_node import SmallNode, running_node
from tests.pipeline.source_jobs import OneSpark
from tests.pipeline.standalone import SECRET, StandaloneCluster
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

from ebla.pipeline.java import archive_path, default_archive_folder, find_java
from ebla.pipeline.spark_session import SPARK_HOME
from ebla.pipeline.spark_settings import SparkOptions

TRAINING_S = 1_200.0
"""It takes half a minute alone, and many times that beside other work."""
TOGETHER = {
    "test_source_jobs": "source",
    "test_source_read": "source",
    "test_export_import": "programs",
    "test_spark_doc": "programs",
    "test_failures": "pipelined",
    "test_kills": "pipelined",
    "test_moves": "pipelined",
    "test_source_failures": "pipelined",
    "test_spark_cluster": "pipelined",
    "test_standalone": "pipelined",
    "test_zombies": "pipelined",
}
"""Modules that share slow fixtures, with the name of their group. Every other module is its own group. The groups begin
in the order of the files, so `pipelined`, which takes about as long as the others together, is one of the first."""

__all__ = ["compiled_once"]


class Together(LoadScopeScheduling):  # type: ignore[misc]  # see above
    """For xdist: modules of one group run in the same process."""

    def _split_scope(self, nodeid: str) -> str:
        module = Path(nodeid.partition("::")[0]).stem
        return TOGETHER.get(module, module)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    # By default the group with the most tests begins first, whatever they take.
    config.option.loadscopereorder = False
    return Together(config, log)


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def rig(loop: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightRig]:
    made = FlightRig(loop, tmp_path_factory.mktemp("rig"))
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class archive for the JVM, made once per machine: Spark starts in half the time with it, and a node without one
    would start to make it in the middle of a test."""
    folder = default_archive_folder(os.environ) or Path(sys.prefix, "share", "ebla", "spark-classes")
    archive = archive_path(folder, find_java("", os.environ), SPARK_HOME)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "making").open("w") as making:
        # The second process waits for the first, whose time is bounded.
        fcntl.flock(making, fcntl.LOCK_EX)
        if not archive.exists():
            command = [sys.executable, "-m", "ebla.pipeline.class_archive", str(tmp_path_factory.mktemp("training"))]
            with subprocess.Popen([*command, "", str(folder)], stdin=subprocess.PIPE) as maker:
                assert maker.wait(TRAINING_S) == 0
            assert archive.exists()
    return folder


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> SparkOptions:
    return SparkOptions(folder=tmp_path_factory.mktemp("spark"), master="local[2]", archive_folder=archives)


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[OneSpark]:
    made = OneSpark(lambda: tmp_path_factory.mktemp("user-spark"))
    yield made
    made.clear()


@pytest.fixture(scope="module")
def no_spark(one_spark: OneSpark) -> None:
    """A process can have one Spark session at a time."""
    one_spark.clear()


@pytest.fixture(scope="module")
def embedded(loop: LoopThread, rig: FlightRig, options: SparkOptions, no_spark: None) -> Iterator[RunningEngine]:
    with RunningEngine(loop, options, rig.authority) as running:
        yield running


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[ServedNodes]:
    """Nodes without a pipeline; every module restores what it changes."""
    local = LocalNodes(tmp_path_factory.mktemp("served") / "nodes", NODES, STEADY)
    try:
        yield ServedNodes(local)
    finally:
        local.end_all()


@pytest.fixture(scope="session")
def small_node(tmp_path_factory: pytest.TempPathFactory, archives: Path, compiled_once: None) -> Iterator[SmallNode]:
    with running_node(tmp_path_factory.mktemp("small")) as running:
        yield running


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), secret=SECRET) as running:
        yield running


@pytest.fixture(scope="session")
def pipelined(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[PipelineCluster]:
    """Nodes with all processes; every test restores what it changes."""
    with running_cluster(tmp_path_factory.mktemp("pipelined")) as cluster:
        yield cluster

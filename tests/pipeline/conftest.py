"""One warm engine and one rig of doors for all tests of a run: a start of Spark takes seconds."""

from collections.abc import Iterator

import pytest
from tests.cluster.conftest import compiled_once
from tests.pipeline.clusters import PipelineCluster, running_cluster
from tests.pipeline.engines import RunningEngine
from tests.pipeline.flight_rig import FlightRig, LoopThread

from ebla.pipeline.spark_settings import SparkOptions

__all__ = ["compiled_once"]


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


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> SparkOptions:
    return SparkOptions(tmp_path_factory.mktemp("spark"), "local[2]")


@pytest.fixture(scope="session")
def embedded(loop: LoopThread, rig: FlightRig, options: SparkOptions) -> Iterator[RunningEngine]:
    with RunningEngine(loop, options, rig.authority) as running:
        yield running


@pytest.fixture(scope="session")
def pipelined(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[PipelineCluster]:
    """Whole nodes; every test leaves them as it found them."""
    with running_cluster(tmp_path_factory.mktemp("pipelined")) as cluster:
        yield cluster

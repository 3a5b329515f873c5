"""An engine that cannot start, and one that is stopped while it does."""

import os
import uuid
from pathlib import Path

import pytest
from tests.pipeline.engines import RunningEngine, until
from tests.pipeline.flight_rig import LoopThread
from tests.pipeline.standalone import free_port

from ebla.model.identity import JobId
from ebla.pipeline.java import archive_path, find_java
from ebla.pipeline.java_process import descendants, is_running
from ebla.pipeline.spark_session import SPARK_HOME
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import EngineState, PipelineUnavailable

pytestmark = pytest.mark.usefixtures("no_spark")


def test_without_java_the_cause_is_told(loop: LoopThread, tmp_path: Path) -> None:
    options = SparkOptions(folder=tmp_path / "spark", java_home=str(tmp_path / "nowhere"))
    with RunningEngine(loop, options, b"", EngineState.UNAVAILABLE) as running:
        cause = running.engine.status().cause
        assert "no Java found" in cause
        assert "install Java 17" in cause
        with pytest.raises(PipelineUnavailable, match="no Java found"):
            loop.run(running.engine.run(JobId(uuid.uuid4()), []))


def test_stopped_while_it_starts_it_leaves_no_process_and_the_archive_of_classes(
    loop: LoopThread, tmp_path: Path
) -> None:
    """Java ignores an invalid archive, and an interrupted start does not prove an archive invalid."""
    archive = archive_path(tmp_path, find_java("", os.environ), SPARK_HOME)
    archive.touch()
    before = {mark.pid for mark in descendants(os.getpid())}

    def started() -> list[int]:
        return [mark.pid for mark in descendants(os.getpid()) if mark.pid not in before]

    options = SparkOptions(folder=tmp_path / "spark", archive_folder=tmp_path)
    with RunningEngine(loop, options, b"", EngineState.STARTING):
        loop.run(until(lambda: (tmp_path / "spark" / "spark.log").exists() and bool(started())))
        marks = [mark for mark in descendants(os.getpid()) if mark.pid not in before]
    assert marks
    assert not [mark for mark in marks if is_running(mark)]
    assert archive.exists()


def test_a_master_that_is_not_there_is_told(loop: LoopThread, tmp_path: Path) -> None:
    master = f"spark://127.0.0.1:{free_port()}"
    with RunningEngine(
        loop, SparkOptions(folder=tmp_path / "spark", master=master, authenticate=False), b"", EngineState.UNAVAILABLE
    ) as running:
        assert f"no Spark master answers at {master}" in running.engine.status().cause

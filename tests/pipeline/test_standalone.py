"""The engine on a Spark cluster: tasks run in foreign processes, with a Python that lacks the package."""

import os

import psutil
import pytest
from tests.pipeline import transfers_contract as contract
from tests.pipeline.engines import RunningEngine, until
from tests.pipeline.flight_rig import FlightRig, LoopThread
from tests.pipeline.standalone import SECRET, StandaloneCluster, bare_python

from ebla.pipeline.java import default_archive_folder
from ebla.pipeline.java_process import descendants, is_running
from ebla.pipeline.package_shipping import warm_up
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import PipelineUnavailable


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended


def test_work_on_a_cluster(
    loop: LoopThread,
    rig: FlightRig,
    standalone: StandaloneCluster,
    no_spark: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One test, because each engine starts Spark and an executor."""
    folder = tmp_path_factory.mktemp("driver")
    stranger = bare_python(folder / "stranger", ("ebla",))
    poor = bare_python(folder / "poor", ("ebla", "msgspec"))
    quick = {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    options = SparkOptions(
        folder=folder / "spark",
        master=standalone.master,
        secret_file=standalone.secret_file,
        python=str(stranger),
        task_tries=2,
        settings=quick,
        archive_folder=default_archive_folder(os.environ),
    )
    with RunningEngine(loop, options, rig.authority) as running:
        rig.transfers = running.engine
        assert running.engine.status().master == standalone.master
        for one in (
            contract.files_arrive_as_they_are,
            contract.every_transfer_is_reported,
            contract.rows_of_several_are_merged,
            contract.replicas_are_compared_by_bucket,
            contract.a_closed_session_ends_the_work,
            contract.a_cancelled_job_ends_for_its_caller,
        ):
            loop.run(one(rig))
        executors = standalone.executors
        commands = [command_line(process) for process in (*descendants(os.getpid()), *executors)]
        assert any("spark.authenticate=true" in command for command in commands)
        assert not any(SECRET in command for command in commands), "others can see command lines"
        assert executors
        assert running.engine._live is not None
        spark = running.engine._live.session.spark
        spark.sparkContext.pythonExec = str(poor)
        with pytest.raises(PipelineUnavailable, match=r"lacks the package msgspec.*pip install"):
            warm_up(spark)
    loop.run(until(lambda: not any(is_running(mark) for mark in executors)))

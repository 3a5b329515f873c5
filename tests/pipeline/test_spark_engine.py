"""The engine on an embedded Spark."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.engines import RunningEngine, until
from tests.pipeline.flight_rig import FlightRig
from tests.pipeline.transfers_contract import CONTRACTS, Contract, content, moved_by_transfer

from ebla.model.transfers import FileMove, MoveResult, StagingKind
from ebla.pipeline.java_process import is_running
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import EngineState, PipelineUnavailable, WorkFailed


@pytest.fixture
def spark(embedded: RunningEngine, rig: FlightRig) -> Iterator[FlightRig]:
    rig.transfers = embedded.engine
    yield rig
    rig.with_short_cut = False
    rig.stream_service.fails = 0
    rig.loop.run(rig.wait_until_held(held=False))


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_the_contract(spark: FlightRig, contract: Contract) -> None:
    spark.loop.run(contract(spark))


async def move_some(rig: FlightRig, size: int = 1_000_000) -> tuple[FileMove, MoveResult]:
    move = FileMove(await rig.files_source({"f": content(1, size)}), 0, await rig.target(StagingKind.FILES))
    results = await rig.transfers.run(rig.new_job(), [move])
    return move, moved_by_transfer(results)[str(move.target.transfer)]


def test_on_one_machine_files_are_linked(spark: FlightRig) -> None:
    async def run() -> None:
        spark.with_short_cut = True
        # Over Flight it would fail.
        spark.stream_service.fails = 1000
        move, moved = await move_some(spark)
        assert moved.short_cut
        assert await spark.staged(move.target, moved) == {"0/f": content(1, 1_000_000)}
        listed = move.source.parts[0].layers[0].files[0]
        assert [(file.name, file.inode) for file in moved.files] == [("0/f", listed.inode)]

    spark.loop.run(run())


def test_a_folder_that_only_looks_the_same_is_not_taken(spark: FlightRig) -> None:
    """In another container the path may exist, but not the file that proves it is the same folder."""

    async def run() -> None:
        spark.with_short_cut = True
        source = await spark.files_source({"f": b"bytes"})
        target = await spark.target(StagingKind.FILES)
        os.unlink(f"{target.folder}/{target.machine}")
        results = await spark.transfers.run(spark.new_job(), [FileMove(source, 0, target)])
        assert not moved_by_transfer(results)[str(target.transfer)].short_cut

    spark.loop.run(run())


def test_a_failure_is_tried_again(spark: FlightRig) -> None:
    async def run() -> None:
        spark.stream_service.fails = 1
        move, moved = await move_some(spark)
        assert await spark.staged(move.target, moved) == {"0/f": content(1, 1_000_000)}
        attempts = [path for path in (spark.stream_service.root / str(move.target.transfer)).iterdir() if path.is_dir()]
        assert len(attempts) == 2

    spark.loop.run(run())


def test_the_cause_of_a_failure_is_told_in_words(spark: FlightRig) -> None:
    async def run() -> None:
        spark.stream_service.fails = 1000
        with pytest.raises(WorkFailed) as caught:
            await move_some(spark)
        assert str(caught.value) == "a task failed: the disk of the source is on fire"

    spark.loop.run(run())


def test_a_killed_task_is_run_again_as_another_attempt(spark: FlightRig, embedded: RunningEngine) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(move_some(spark))
            await spark.wait_until_held(held=True)
            for worker in embedded.workers():
                os.kill(worker.pid, signal.SIGKILL)
            await spark.wait_until_held(held=True)
            await spark.wait_until_held(held=False)
        move, moved = running.result()
        assert await spark.staged(move.target, moved) == {"0/f": content(1, 1_000_000)}
        attempts = [
            path.name for path in (spark.stream_service.root / str(move.target.transfer)).iterdir() if path.is_dir()
        ]
        assert len(attempts) == 2
        assert str(moved.attempt) in attempts

    spark.loop.run(run())


def test_tasks_are_counted(spark: FlightRig) -> None:
    async def run() -> None:
        job = spark.new_job()
        sources = [await spark.files_source({"f": content(number, 1000)}) for number in range(3)]
        moves = [FileMove(source, 0, await spark.target(StagingKind.FILES)) for source in sources]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(spark.transfers.run(job, moves))
            await spark.wait_until_held(held=True)
            await until(lambda: spark.transfers.tasks(job).running > 0)
            counts = spark.transfers.tasks(job)
            await spark.wait_until_held(held=False)
        # Three small moves for two slots.
        assert (counts.total, counts.done) == (2, 0)
        assert len(moved_by_transfer(running.result())) == 3

    spark.loop.run(run())


def test_a_cancelled_job_leaves_no_task(spark: FlightRig, embedded: RunningEngine) -> None:
    """Spark ends its Python process; it checks every two seconds."""

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(move_some(spark))
            await spark.wait_until_held(held=True)
            before = embedded.workers()
            running.cancel()
        await until(lambda: not all(is_running(worker) for worker in before))

    spark.loop.run(run(), 60)


def test_a_second_one_in_this_process_is_refused_and_harms_nothing(spark: FlightRig, tmp_path: Path) -> None:
    options = SparkOptions(folder=tmp_path / "spark")
    with RunningEngine(spark.loop, options, spark.authority, EngineState.UNAVAILABLE) as second:
        assert "has a Spark session already" in second.engine.status().cause
        spark.loop.run(move_some(spark))
    spark.loop.run(move_some(spark))


def test_a_frozen_spark_is_ended_and_replaced(
    spark: FlightRig, embedded: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more jobs than threads that poll their progress; the frozen Spark blocks all of these threads."""

    async def lose() -> None:
        with pytest.raises(PipelineUnavailable):
            await move_some(spark)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(6):
                tasks.create_task(lose())
            await spark.wait_until_held(held=True)
            os.kill(embedded.java_pid, signal.SIGSTOP)
            await until(lambda: spark.transfers.status().state is not EngineState.READY)
            assert "has not answered" in spark.transfers.status().cause
        await spark.wait_until_held(held=False)

    monkeypatch.setattr("ebla.pipeline.spark_engine.SILENCE_MAX_S", 2.0)
    spark.loop.run(run())
    monkeypatch.undo()
    embedded.wait_for(EngineState.READY)


def test_spark_is_lost_and_comes_back(spark: FlightRig, embedded: RunningEngine) -> None:
    async def lose() -> None:
        with pytest.raises(PipelineUnavailable, match=r"killed by signal 9|was lost"):
            async with asyncio.timeout(30):
                await move_some(spark)

    async def run() -> None:
        below = embedded.workers()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lose())
            await spark.wait_until_held(held=True)
            os.kill(embedded.java_pid, signal.SIGKILL)
        await spark.wait_until_held(held=False)
        await until(lambda: spark.transfers.status().state is not EngineState.READY)
        assert "killed by signal 9" in spark.transfers.status().cause
        with pytest.raises(PipelineUnavailable, match="killed by signal 9"):
            await spark.transfers.run(spark.new_job(), [])
        await until(lambda: not any(is_running(worker) for worker in below))

    spark.loop.run(run())
    embedded.wait_for(EngineState.READY)
    spark.loop.run(move_some(spark))

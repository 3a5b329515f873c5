"""Starts of the embedded Spark, with and without an archive of Java's classes, and how long a warm job takes.

    python -m benchmarks.bench_spark_start [--rounds N]

A start is everything from nothing to the first task done, as the pipeline process sees it. A warm job links one small
file from a checkpoint into staging, and is timed from the call to its result. Wall times depend on what else the
machine does, so CPU is printed beside them. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

from benchmarks.figures import Figures
from ebla.model.identity import Address, CheckpointId, HostId, JobId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import (
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    FileMove,
    MoveResult,
    StagingKind,
    TransferSource,
    TransferTarget,
)
from ebla.pipeline.class_archive import train
from ebla.pipeline.spark_engine import SparkEngine
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import EngineState
from ebla.runtime.machine_id import machine_id

WARM_JOB_MS_MAX = 400.0
JOBS_UNTIL_WARM = 10
JOBS = 30


def linked(folder: Path) -> FileMove:
    """One file that is hard-linked: no byte is read."""
    host, address, machine = HostId(uuid.uuid4()), Address("127.0.0.1", 1), f"{machine_id()}.{uuid.uuid4().hex}"
    checkpoint, staging = folder / str(uuid.uuid4()), folder / str(uuid.uuid4())
    for place in (checkpoint / "layer", staging):
        place.mkdir(parents=True)
    for place in (checkpoint, staging):
        (place / machine).touch()
    (checkpoint / "layer" / "f").write_bytes(b"content")
    layer = CheckpointLayer(folder="layer", range=WHOLE_RING, files=(CheckpointFile("f", 7),))
    parts = (CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=(layer,)),)
    return FileMove(
        TransferSource(
            host=host,
            checkpoint=CheckpointId(uuid.uuid4()),
            table=TableId(uuid.uuid4()),
            parts=parts,
            ticket=b"",
            flight=address,
            machine=machine,
            folder=str(checkpoint),
        ),
        0,
        TransferTarget(
            host=host,
            shard=ShardNumber(0),
            session=SessionId(uuid.uuid4()),
            transfer=TransferId(uuid.uuid4()),
            kind=StagingKind.FILES,
            range=WHOLE_RING,
            ticket=b"",
            flight=address,
            machine=machine,
            folder=str(staging),
        ),
    )


def tree_cpu_s() -> float:
    """Of all live processes below this one."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


class Run:
    """One engine, from its start."""

    def __init__(self, folder: Path, archives: Path | None) -> None:
        self.folder = folder
        self.engine = SparkEngine(SparkOptions(folder=folder / "spark", archive_folder=archives), b"")
        self.start_s = self.cpu_s = 0.0
        self.jobs_ms: list[float] = []

    async def measure(self, jobs: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            began = time.perf_counter()
            serving = tasks.create_task(self.engine.serve())
            while self.engine.status().state is not EngineState.READY:  # noqa: ASYNC110  # the port has no event
                await asyncio.sleep(0.02)
            self.start_s, self.cpu_s = time.perf_counter() - began, tree_cpu_s()
            for _ in range(jobs):
                await self._job()
            serving.cancel()

    async def _job(self) -> None:
        move = linked(self.folder)
        began = time.perf_counter()
        (moved,) = await self.engine.run(JobId(uuid.uuid4()), [move])
        self.jobs_ms.append((time.perf_counter() - began) * 1e3)
        assert isinstance(moved, MoveResult)
        assert moved.short_cut


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="starts of each kind")
    rounds = parser.parse_args().rounds
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="ebla-bench-") as place:
        folder = Path(place)
        began = time.perf_counter()
        train(folder / "training", "", folder / "archives")
        print(f"archive of classes made in {figures.note('archive_s', time.perf_counter() - began):.1f} s")
        for name, archives in (("plain", None), ("archived", folder / "archives")):
            runs = [Run(folder / f"{name}-{number}", archives) for number in range(rounds)]
            for run in runs:
                asyncio.run(run.measure(JOBS_UNTIL_WARM + JOBS if run is runs[-1] else 0))
            wall = figures.note(f"{name}_start_s", statistics.median(run.start_s for run in runs))
            cpu = figures.note(f"{name}_start_cpu_s", statistics.median(run.cpu_s for run in runs))
            print(f"start, {name}: {wall:.1f} s, {cpu:.1f} CPU s ({rounds} runs)")
        warm = sorted(runs[-1].jobs_ms[JOBS_UNTIL_WARM:])
        judged = figures.at_most("warm_job_ms", statistics.median(warm), WARM_JOB_MS_MAX)
        slow = figures.note("warm_job_p90_ms", warm[int(len(warm) * 0.9)])
        first = figures.note("first_job_ms", runs[-1].jobs_ms[0])
        print(f"warm job: {statistics.median(warm):.0f} ms ({judged}), p90 {slow:.0f} ms, the first {first:.0f} ms")
    figures.note("load_average", os.getloadavg()[0])
    print(json.dumps({"benchmark": "spark_start", **figures.values, "missed": figures.missed}))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())

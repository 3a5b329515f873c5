"""What the disk itself can do, measured beside whatever stands on it: the limit that other figures are divided by.

`python -m benchmarks.disk_limit [FOLDER]` prints the raw sync rate, and what the log's group commit makes of it.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ebla.journal.group_commit import CommitLimits, GroupCommit
from ebla.journal.records import encode_frame
from ebla.journal.segments import SegmentedLog
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_chance import SystemChance

RECORD_BYTES = 200
FILE_BYTES = 16 << 20


def measure_sync_rate(folder: Path | str, *, seconds: float = 1.0, record_bytes: int = RECORD_BYTES) -> float:
    """Syncs per second: a bare loop of one small write and one fdatasync in a file laid out ahead."""
    path = os.path.join(folder, "sync-rate")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.fsync(descriptor)
        record = os.urandom(record_bytes)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(descriptor, record, count * record_bytes % (FILE_BYTES - record_bytes))
            os.fdatasync(descriptor)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        os.unlink(path)


@dataclass(frozen=True, slots=True)
class CommitFigures:
    writers: int
    commits_per_s: float
    cpu_us_per_commit: float


def measure_group_commit(folder: Path | str, writers: int, *, seconds: float = 1.0) -> CommitFigures:
    """Durable commits per second of so many writers, each with one record under way."""
    return asyncio.run(_measure_group_commit(os.path.join(folder, f"log-{writers}"), writers, seconds))


async def _measure_group_commit(folder: str, writers: int, seconds: float) -> CommitFigures:
    disk = FileDisk()
    log = await SegmentedLog.open(disk, SystemChance(), folder)
    group = GroupCommit(log, CommitLimits())
    record = os.urandom(RECORD_BYTES)
    commits = 0
    end = time.perf_counter() + seconds

    async def write() -> None:
        nonlocal commits
        while time.perf_counter() < end:
            await group.commit([record])
            commits += 1

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(group.run())
        began, began_cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as writing:
            for _ in range(writers):
                writing.create_task(write())
        passed, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        running.cancel()
    await log.close()
    disk.close()
    return CommitFigures(writers, commits / passed, cpu / commits * 1e6)


def measure_encoding(records_per_batch: int = 256) -> float:
    """CPU microseconds per record of one batch's frame."""
    records = [os.urandom(RECORD_BYTES) for _ in range(records_per_batch)]
    rounds = 500
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for number in range(rounds):
            encode_frame(1, 32, number, records)
        best = min(best, time.process_time() - began)
    return best / rounds / records_per_batch * 1e6


def main(folder: str) -> None:
    figures: dict[str, float] = {}
    # Before, between and after: on a shared disk the rate wanders from second to second.
    raw_rates = [measure_sync_rate(folder)]
    for writers in (1, 64, 512):
        measured = measure_group_commit(folder, writers)
        figures[f"commits_per_s_{writers}"] = measured.commits_per_s
        figures[f"cpu_us_per_commit_{writers}"] = measured.cpu_us_per_commit
        raw_rates.append(measure_sync_rate(folder))
    raw = statistics.median(raw_rates)
    figures["raw_syncs_per_s"] = raw
    figures["encode_us_per_record"] = measure_encoding()
    print(f"raw syncs per second: {', '.join(f'{rate:.0f}' for rate in raw_rates)}")
    for writers in (1, 64, 512):
        rate = figures[f"commits_per_s_{writers}"]
        cpu = figures[f"cpu_us_per_commit_{writers}"]
        print(f"{writers} writers: {rate:.0f} commits/s, {rate / raw:.2f} of the raw rate, {cpu:.1f} µs CPU each")
    print(f"encoding a batch of 256: {figures['encode_us_per_record']:.2f} µs per record")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as scratch:
        main(scratch)

"""The tablet store against its limits: CPU per row and rate per core, rows of 8 columns and about 120 bytes.

    python -m benchmarks.bench_store [--quick] [--folder FOLDER] [--only NAME]

CPU is that of the whole process, its background threads included. Each figure is the best of several rounds, since
other load only adds. `--quick` uses a tenth of the rows. The last line is JSON.
"""

import argparse
import asyncio
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.journal.recovery import make_durable_folder
from ebla.model.cql_types import parse_type
from ebla.model.identity import HistoryId, StoreId, TableId
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.token import WHOLE_RING
from ebla.model.transaction import Revision
from ebla.options import CommitLogMode
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_rng import SystemRng
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.columns.load_encoding import WriteStamp, encode_upserts
from ebla.storage.commit_log import CommitLog
from ebla.storage.compaction.compaction_plan import CompactionInput, CompactionJob
from ebla.storage.compaction.compactor import BaseLayerWriter, run_compaction
from ebla.storage.compaction.tombstone_gc import KEEP_ALL
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.manifest import HeldRanges, Incarnation, LayerId
from ebla.storage.merge.chunk_merge import sort_rows
from ebla.storage.scan.scan_columns import select_values
from ebla.storage.scan.stack_scan import ScanLayer, ScanQuery, close_scan, open_scan, scan_rows
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore
from ebla.storage.store_identity import create_store
from ebla.storage.store_limits import StoreLimits
from ebla.storage.store_recovery import open_store

ROWS, QUICK_ROWS = 200_000, 20_000
BATCH_ROWS = 100
TABLETS_MANY, TABLETS_SYNCED = 500, 32
CHECKPOINT_BYTES, QUICK_CHECKPOINT_BYTES = 1 << 30, 128 << 20
LARGE_VALUE_BYTES = 64 << 10
GAIN_BASES_BYTES = 80 << 20
GAINED_RANGES = 128
HISTORY = HistoryId(uuid.UUID(int=1))


def _column(name: str, kind: str, place: ColumnKind = ColumnKind.REGULAR) -> Column:
    return Column(name=name, type=parse_type(kind), kind=place)


STORE = StoreId(uuid.UUID(int=1))
SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)),
    "bench",
    "rows",
    (
        _column("id", "bigint", ColumnKind.PARTITION_KEY),
        _column("amount", "double"),
        _column("count", "int"),
        _column("label", "text"),
        _column("ok", "boolean"),
        _column("owner", "uuid"),
        _column("title", "text"),
        _column("updated", "timestamp"),
    ),
)


@dataclass(frozen=True, slots=True)
class Limit:
    bound: float
    unit: str
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g} {self.unit}"


LIMITS: dict[str, Limit] = {
    "write_live_us": Limit(10, "µs/row"),
    "read_1_layer_us": Limit(8, "µs/row"),
    "read_3_layers_us": Limit(14, "µs/row"),
    "scan_plain_us": Limit(2, "µs/row"),
    "scan_sidecar_us": Limit(0.5, "µs/row"),
    "scan_3_layers_us": Limit(5, "µs/row"),
    "load_us": Limit(3, "µs/row"),
    "compact_tenth_rows_per_s": Limit(300_000, "rows/s", at_least=True),
    "compact_full_rows_per_s": Limit(120_000, "rows/s", at_least=True),
    "group_commit_times": Limit(5, "times", at_least=True),
    "checkpoint_loop_ms": Limit(100, "ms"),
    "gain_loop_ms": Limit(50, "ms"),
    "cleanup_times": Limit(1.2, "times a full compaction"),
    "cleanup_rows_left": Limit(0, "rows"),
}


@dataclass(slots=True, kw_only=True)
class Bench:
    folder: str
    rows: int
    checkpoint_bytes: int
    rounds: int = 5
    disk: FileDisk = field(default_factory=FileDisk)
    figures: dict[str, float] = field(default_factory=dict)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def note(self, name: str, value: float) -> None:
        """The best counts."""
        limit = LIMITS.get(name)
        known = self.figures.get(name, value)
        self.figures[name] = max(known, value) if limit is not None and limit.at_least else min(known, value)


class CpuTimer:
    """CPU microseconds per row of a block, over all threads."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.us_per_row = 0.0

    def __enter__(self) -> "CpuTimer":
        gc.collect()
        self._began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.us_per_row = (time.process_time() - self._began) / self._rows * 1e6


def columns_of(ids: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> pa.RecordBatch:
    draw = np.random.default_rng(seed)
    count = len(ids)
    words = pa.array([f"{Random(number).getrandbits(80):020x}" for number in range(1000)])
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "amount": pa.array(draw.random(count)),
            "count": pa.array(draw.integers(0, 1000, count), pa.int32()),
            "label": words.take(pa.array(draw.integers(0, 1000, count))),
            "ok": pa.array(draw.random(count) < 0.5),
            "owner": pa.array([draw.bytes(16) for _ in range(count)], pa.binary(16)),
            "title": words.take(pa.array(draw.integers(0, 1000, count))),
            "updated": pa.array(draw.integers(0, 1 << 40, count)).cast(pa.timestamp("ms", tz="UTC")),
        }
    )


def items_of(batch: pa.RecordBatch, timestamp_us: int) -> list[Item]:
    rows = sort_rows(SCHEMA, *encode_upserts(SCHEMA, batch, WriteStamp(timestamp_us=timestamp_us, at_s=0)))
    return list(zip(*(column.to_pylist() for column in rows.columns)))


@asynccontextmanager
async def running_store(
    bench: Bench, name: str, mode: CommitLogMode = CommitLogMode.PERIODIC
) -> AsyncIterator[ShardStore]:
    limits = StoreLimits(
        mode=mode,
        live_bytes_max=1 << 40,
        layers_open_max=1000,
        free_bytes_min=0,
    )
    await create_store(bench.disk, SystemRng(), bench.path(name), STORE)
    store = await open_store(bench.disk, SystemRng(), bench.path(name), RocksEngine(bench.disk), limits, store_id=STORE)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        await store.set_schema(SCHEMA)
        yield store
        await store.close()
        running.cancel()


def batches_of(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), BATCH_ROWS):
        yield items[start : start + BATCH_ROWS]


async def measure_live(bench: Bench) -> None:
    """Writes of new and of existing rows. Then reads, with a growing number of layers."""
    count = bench.rows
    async with running_store(bench, "live") as store:
        for number, token_range in enumerate(WHOLE_RING.split(bench.rounds)):
            await _measure_writes(bench, store, await store.create(SCHEMA.id, token_range), number)
        stack = await store.create(SCHEMA.id, WHOLE_RING)
        for batch in batches_of(items_of(columns_of(range(count), 2), 20)):
            await store.write(stack, batch)
        for layers in (1, 3):
            await _measure_reads(bench, store, stack, layers)
            for seed in (3, 4):
                for batch in batches_of(items_of(columns_of(range(0, count, 2), seed), 10 * seed)):
                    await store.write(stack, batch)
                await store.seal(stack)


async def _measure_writes(bench: Bench, store: ShardStore, stack: Stack, seed: int) -> None:
    mixed_us = 0.0
    for timestamp_us, name in ((10, "write_new_us"), (20, "write_update_us")):
        items = items_of(columns_of(range(bench.rows), seed), timestamp_us)
        items = [item for item in items if decode_token(item[0]) in stack.entry.range]
        Random(timestamp_us).shuffle(items)
        with CpuTimer(len(items)) as writing:
            for batch in batches_of(items):
                await store.write(stack, batch)
                await asyncio.sleep(0)
            await store.flush(stack)
        bench.note(name, writing.us_per_row)
        mixed_us += writing.us_per_row / 2
    bench.note("write_live_us", mixed_us)


async def _measure_reads(bench: Bench, store: ShardStore, stack: Stack, layers: int) -> None:
    await store.flush(stack)
    if layers > 1:
        assert len(stack.entry.bases) == layers - 1
        newest = items_of(columns_of(range(0, bench.rows, 3), 9), 90)
        for batch in batches_of(newest):
            await store.write(stack, batch)
    keys = [key for key, _ in items_of(columns_of(range(bench.rows), 1), 10)]
    chosen = Random(5).choices(keys, k=min(20_000, bench.rows))
    for _ in range(bench.rounds):
        with CpuTimer(len(chosen)) as reading:
            for key in chosen:
                assert (await store.open(stack)).read(key) is not None
        bench.note(f"read_{layers}_layer{'s' if layers > 1 else ''}_us", reading.us_per_row)


async def load(bench: Bench, engine: RocksEngine, name: str, batch: pa.RecordBatch, timestamp_us: int) -> None:
    """A batch of columns as a finished base."""
    writer = BaseLayerWriter(engine, bench.disk, bench.path(name), SCHEMA)
    rows = sort_rows(SCHEMA, *encode_upserts(SCHEMA, batch, WriteStamp(timestamp_us=timestamp_us, at_s=0)))
    for start in range(0, len(rows), 16 * 1024):
        writer.add_rows(*rows.slice(start, 16 * 1024).columns)
    await writer.finish()


async def measure_columns(bench: Bench) -> None:
    engine = RocksEngine(bench.disk)
    for number in range(3):
        batch = columns_of(np.random.default_rng(number).permutation(bench.rows), number)
        with CpuTimer(bench.rows) as loading:
            await load(bench, engine, f"base{number}", batch, 10 + number)
        bench.note("load_us", loading.us_per_row)
    for layers, with_sidecar, name in (
        (1, False, "scan_plain_us"),
        (1, True, "scan_sidecar_us"),
        (3, False, "scan_3_layers_us"),
        (3, True, "scan_3_sidecars_us"),
    ):
        await _measure_scan(bench, engine, (layers, with_sidecar), name)


async def _measure_scan(bench: Bench, engine: RocksEngine, what: tuple[int, bool], name: str) -> None:
    layers, with_sidecar = what
    parts = [(bench.path(f"base{number}"), (WHOLE_RING,)) for number in range(layers)]
    opened = await open_scan(engine, bench.disk, parts)
    scanned = opened if with_sidecar else [ScanLayer(one.layer) for one in opened]
    question = ScanQuery(schema=SCHEMA, columns=select_values(column.name for column in SCHEMA.columns), now_s=0)
    for _ in range(bench.rounds):
        with CpuTimer(bench.rows) as scanning:
            found = sum(len(batch) for batch in scan_rows(scanned, question))
        assert found == bench.rows
        bench.note(name, scanning.us_per_row)
    await close_scan(opened)


async def measure_compactions(bench: Bench) -> None:
    """Rows of the result per second of CPU."""
    engine = RocksEngine(bench.disk)
    count = bench.rows
    await load(bench, engine, "older", columns_of(range(count), 1), 10)
    await load(bench, engine, "full", columns_of(range(count), 2), 20)
    await load(bench, engine, "tenth", columns_of(range(count * 9 // 10, count * 19 // 10), 3), 30)
    for other, rows in (("tenth", count * 19 // 10), ("full", count)):
        inputs = tuple(
            CompactionInput(LayerId(number), bench.path(name), (WHOLE_RING,))
            for number, name in enumerate(("older", other))
        )
        for number in range(bench.rounds):
            out = bench.path(f"compact-{other}-{number}")
            job = CompactionJob(
                incarnation=Incarnation(1),
                inputs=inputs,
                output=LayerId(9),
                output_folder=out,
                range=WHOLE_RING,
                rule=KEEP_ALL,
                schema=SCHEMA,
            )
            with CpuTimer(rows) as timer:
                result = await run_compaction(engine, bench.disk, job)
            assert result.facts.rows == rows
            bench.note(f"compact_{other}_rows_per_s", 1e6 / timer.us_per_row)
            await engine.drop(out)


async def measure_group_commit(bench: Bench) -> None:
    """One write to each of 32 tablets at once, durable when answered: one log for all against one log each."""
    items = items_of(columns_of(range(TABLETS_SYNCED), 1), 10)
    shared, single = [], []
    async with one_log(bench) as log, logs_of_their_own(bench) as logs:
        for _ in range(20 * bench.rounds):
            shared.append(await _timed(lambda: _write_all([log] * TABLETS_SYNCED, items)))
            single.append(await _timed(lambda: _write_all(logs, items)))
    for name, found in (("one_log", shared), ("log_per_tablet", single)):
        bench.note(f"{name}_writes_per_s", TABLETS_SYNCED / statistics.median(found))
    bench.note("group_commit_times", statistics.median(single) / statistics.median(shared))


@asynccontextmanager
async def one_log(bench: Bench) -> AsyncIterator[CommitLog]:
    async with asyncio.TaskGroup() as tasks:
        log = await _new_log(bench, "shared")
        running = tasks.create_task(log.run())
        yield log
        running.cancel()


@asynccontextmanager
async def logs_of_their_own(bench: Bench) -> AsyncIterator[list[CommitLog]]:
    async with asyncio.TaskGroup() as tasks:
        logs = [await _new_log(bench, f"own-{number}") for number in range(TABLETS_SYNCED)]
        running = [tasks.create_task(log.run()) for log in logs]
        yield logs
        for one in running:
            one.cancel()


async def _new_log(bench: Bench, name: str) -> CommitLog:
    await make_durable_folder(bench.disk, bench.path(name))
    return await CommitLog.open(bench.disk, SystemRng(), bench.path(name), StoreLimits())


async def _write_all(logs: Sequence[CommitLog], items: Sequence[Item]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number, (log, item) in enumerate(zip(logs, items)):
            sequence = log.queue(log.encode(Incarnation(number), [item]))
            tasks.create_task(log.wait_durable(sequence))


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def measure_checkpoint(bench: Bench) -> None:
    """The longest stall of the loop, and the CPU of its thread, while a large stack is hard-linked."""
    engine = RocksEngine(bench.disk)
    per_layer = bench.checkpoint_bytes // 4 // LARGE_VALUE_BYTES
    keys = [key for key, _ in items_of(columns_of(range(per_layer), 1), 10)]
    values = (os.urandom(LARGE_VALUE_BYTES) for _ in keys)
    await build_layer(
        engine, bench.path("large"), zip(keys, values), LayerFacts(least_us=10, greatest_us=10, rows=len(keys))
    )
    async with running_store(bench, "checkpointed") as store:
        stack = await store.create(SCHEMA.id, WHOLE_RING)
        for number in range(4):
            copy = bench.path(f"large-{number}")
            shutil.copytree(bench.path("large"), copy)
            await store.adopt_all(stack, (Adoption(copy, WHOLE_RING, f"bench-{number}"),))
        for batch in batches_of(items_of(columns_of(range(10_000), 2), 20)):
            await store.write(stack, batch)
        bench.note("checkpoint_stack_mb", sum(one.size_bytes for one in stack.entry.bases) / 1e6)
        for number in range(bench.rounds):
            folder = bench.path(f"checkpoint-{number}")
            began, thread_began = time.perf_counter(), time.thread_time()
            stall_s = await _longest_stall(store.checkpoint(stack, folder))
            bench.note("checkpoint_wall_ms", (time.perf_counter() - began) * 1e3)
            bench.note("checkpoint_cpu_ms", (time.thread_time() - thread_began) * 1e3)
            bench.note("checkpoint_loop_ms", stall_s * 1e3)
            bench.disk.remove_folder(folder)


async def _longest_stall(work: Awaitable[object]) -> float:
    """The longest time between two turns of a loop that has nothing else to do."""
    done = asyncio.Event()

    async def finish() -> None:
        await work
        done.set()

    longest, last = 0.0, time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(finish())
        while not done.is_set():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last - 0.001), now
    return longest


async def measure_gain(bench: Bench) -> None:
    """The longest stall of the loop while half of a stack of 100 MB is hidden, a fifth of it in the live layer."""
    engine = RocksEngine(bench.disk)
    per_layer = GAIN_BASES_BYTES // 2 // LARGE_VALUE_BYTES
    keys = [key for key, _ in items_of(columns_of(range(bench.rows, bench.rows + per_layer), 1), 10)]
    facts = LayerFacts(least_us=10, greatest_us=10, rows=len(keys))
    live = items_of(columns_of(range(bench.rows), 2), 20)
    rings = (WHOLE_RING.split(2 * GAINED_RANGES)[::2], (WHOLE_RING,))
    async with running_store(bench, "gained") as store:
        for number in range(bench.rounds):
            stack = await store.create(SCHEMA.id, WHOLE_RING)
            for layer in range(2):
                folder = bench.path(f"gained-{number}-{layer}")
                await build_layer(engine, folder, zip(keys, (os.urandom(LARGE_VALUE_BYTES) for _ in keys)), facts)
                await store.adopt_all(stack, (Adoption(folder, WHOLE_RING, folder),))
            for batch in batches_of(live):
                await store.write(stack, batch)
            bench.note("gain_stack_mb", store.bytes_of(stack) / 1e6)
            held = [HeldRanges(ranges, Revision(HISTORY, index)) for index, ranges in enumerate(rings)]
            await store.hold_ranges(stack, held[0])
            began = time.perf_counter()
            stall_s = await _longest_stall(store.hold_ranges(stack, held[1]))
            bench.note("gain_wall_ms", (time.perf_counter() - began) * 1e3)
            bench.note("gain_loop_ms", stall_s * 1e3)
            chosen = [key for key, _ in live[:: max(1, bench.rows // 20_000)]]
            with CpuTimer(len(chosen)) as reading:
                for key in chosen:
                    (await store.open(stack)).read(key)
            bench.note("read_hidden_us", reading.us_per_row)
            await store.drop(stack)


async def measure_cleanup(bench: Bench) -> None:
    """CPU of a compaction that drops half of the rows, beside one that keeps all."""
    engine = RocksEngine(bench.disk)
    for number, name in enumerate(("first", "second")):
        await load(bench, engine, name, columns_of(range(bench.rows), number), 10 + number)
    kept = WHOLE_RING.split(2 * GAINED_RANGES)[::2]
    cost_us: dict[bool, float] = {}
    for number in range(bench.rounds):
        for is_cleanup in (False, True):
            out = bench.path(f"cleanup-{number}-{is_cleanup}")
            job = CompactionJob(
                incarnation=Incarnation(1),
                inputs=tuple(
                    CompactionInput(LayerId(layer), bench.path(name), (WHOLE_RING,))
                    for layer, name in enumerate(("first", "second"))
                ),
                output=LayerId(9),
                output_folder=out,
                range=WHOLE_RING,
                rule=KEEP_ALL,
                schema=SCHEMA,
                kept=kept if is_cleanup else None,
            )
            with CpuTimer(bench.rows) as compacting:
                await run_compaction(engine, bench.disk, job)
            cost_us[is_cleanup] = min(compacting.us_per_row, cost_us.get(is_cleanup, compacting.us_per_row))
            if is_cleanup:
                layer = await engine.open(out, writable=False)
                left = sum(not any(decode_token(key) in one for one in kept) for key, _ in layer.scan(b"", None))
                await layer.close()
                bench.note("cleanup_rows_left", left)
            await engine.drop(out)
    bench.note("cleanup_times", cost_us[True] / cost_us[False])


async def measure_many_tablets(bench: Bench) -> None:
    """500 tablets: created and written once, closed, then reopened and read once each."""
    count = TABLETS_MANY if bench.rows == ROWS else TABLETS_MANY // 10
    ranges = WHOLE_RING.split(count)
    items = items_of(columns_of(range(count * 20), 1), 10)
    by_range: dict[int, list[Item]] = {}
    for key, value in items:
        by_range.setdefault(int.from_bytes(key[:8]) * count >> 64, []).append((key, value))
    began, cpu = time.perf_counter(), time.process_time()
    async with running_store(bench, "many") as store:
        for number, rows in sorted(by_range.items()):
            await store.write(await store.create(SCHEMA.id, ranges[number]), rows)
        bench.note("tablets_written_s", time.perf_counter() - began)
    bench.note("tablets_closed_s", time.perf_counter() - began)
    bench.note("tablets_closed_cpu_s", time.process_time() - cpu)
    began, cpu = time.perf_counter(), time.process_time()
    async with running_store(bench, "many") as store:
        bench.note("tablets_start_s", time.perf_counter() - began)
        stacks = {stack.entry.range: stack for stack in store.stacks.values()}
        for number, rows in by_range.items():
            assert (await store.open(stacks[ranges[number]])).read(rows[0][0]) == rows[0][1]
        bench.note("tablets_all_open_s", time.perf_counter() - began)
        bench.note("tablets_all_open_cpu_s", time.process_time() - cpu)
    bench.note("tablets", count)


PARTS: dict[str, Callable[[Bench], Coroutine[Any, Any, None]]] = {
    "live": measure_live,
    "columns": measure_columns,
    "compactions": measure_compactions,
    "group_commit": measure_group_commit,
    "checkpoint": measure_checkpoint,
    "gain": measure_gain,
    "cleanup": measure_cleanup,
    "tablets": measure_many_tablets,
}


def figure_line(name: str, value: float) -> str:
    limit = LIMITS.get(name)
    judged = "" if limit is None else f"  {'ok' if limit.met(value) else 'MISSED'}, {limit}"
    return f"{name:26} {value:12,.2f}{judged}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--folder", default=".", help="on the disk to measure")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    rows, size = (QUICK_ROWS, QUICK_CHECKPOINT_BYTES) if options.quick else (ROWS, CHECKPOINT_BYTES)
    for name, measure in PARTS.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                bench = Bench(folder=folder, rows=rows, checkpoint_bytes=size)
                asyncio.run(measure(bench))
                bench.disk.close()
            for figure, value in bench.figures.items():
                print(figure_line(figure, value), flush=True)
            figures.update(bench.figures)
    met = all(LIMITS[name].met(value) for name, value in figures.items() if name in LIMITS)
    limits = {name: limit.bound for name, limit in LIMITS.items()}
    print(
        json.dumps(
            {"rows": rows, **{name: round(value, 3) for name, value in figures.items()}, "limits": limits, "ok": met}
        )
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

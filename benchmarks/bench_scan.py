"""The CPU cost of a scan for a reading task, rows of 8 columns and about 120 bytes.

    python -m benchmarks.bench_scan [--rows N] [--only NAME] [--profile]

CPU microseconds of the whole process per row, best of several rounds, since other load only adds; rows per second
of one core follow from it. Layers are in the page cache. The last line is JSON.
"""

import argparse
import asyncio
import cProfile
import gc
import hashlib
import json
import pstats
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ebla.model.cql_types import parse_type
from ebla.model.identity import TableId
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector, KeyCondition, KeyOperator, SelectorKind
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import ScanStack
from ebla.runtime.file_disk import FileDisk
from ebla.source.read.local_scan import LocalScan, open_located
from ebla.source.read.replica_merge import merge_replicas
from ebla.storage.columns.load_encoding import WriteStamp, encode_upserts
from ebla.storage.compaction.compactor import BaseLayerWriter
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.merge.chunk_merge import sort_rows
from ebla.storage.scan.scan_columns import select_values
from ebla.storage.scan.stack_scan import ScanQuery
from ebla.wire.table_calls import CheckpointFiles
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery

ROWS = 400_000
ROUNDS = 5
WORDS = 5_000
SIDECAR_FILES = ("columns.arrow", "columns.index")
LIMITS_US = {"sidecar": 1.0, "rows": 1.4}
"""The limits of the Spark source, as CPU time per row: everything else of a job comes on top."""


def _column(name: str, kind: str, place: ColumnKind = ColumnKind.REGULAR) -> Column:
    return Column(name=name, type=parse_type(kind), kind=place)


SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)),
    "bench",
    "rows",
    (
        _column("id", "bigint", ColumnKind.PARTITION_KEY),
        _column("name", "text"),
        _column("hits", "bigint"),
        _column("price", "double"),
        _column("note", "text"),
        _column("seen", "timestamp"),
        _column("kind", "int"),
        _column("code", "text"),
    ),
)
ALL = select_values(column.name for column in SCHEMA.columns)
NARROW = select_values(("id", "hits"))
TIMES = (
    *ALL,
    ColumnSelector("name", SelectorKind.WRITETIME, "written"),
    ColumnSelector("", SelectorKind.TOKEN, "token"),
)


def columns_of(rows: int, seed: int) -> pa.RecordBatch:
    draw = np.random.default_rng(seed)
    words = [hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(WORDS)]

    def texts(size: int) -> pa.Array:
        return pa.array([word[:size] for word in words]).take(pa.array(draw.integers(0, WORDS, rows)))

    return pa.record_batch(
        {
            "id": pa.array(np.arange(rows)),
            "name": texts(32),
            "hits": pa.array(draw.integers(0, 1_000_003, rows)),
            "price": pa.array(draw.random(rows)),
            "note": texts(40),
            "seen": pa.array(1_700_000_000_000 + np.arange(rows) * 37).cast(pa.timestamp("ms", tz="UTC")),
            "kind": pa.array(draw.integers(0, 97, rows), pa.int32()),
            "code": texts(12),
        }
    )


class Layers:
    """Three bases with the same keys, each with its columns, and the same without."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.rows = rows
        self.parquet = folder / "rows.parquet"

    async def build(self) -> None:
        disk = FileDisk()
        try:
            for number in range(3):
                batch = columns_of(self.rows, number)
                if not number:
                    pq.write_table(pa.table(batch), self.parquet)
                writer = BaseLayerWriter(RocksEngine(disk), disk, str(self.folder / f"columns{number}"), SCHEMA)
                stamp = WriteStamp(timestamp_us=number + 1, at_s=0)
                rows = sort_rows(SCHEMA, *encode_upserts(SCHEMA, batch, stamp))
                for start in range(0, len(rows), 16 * 1024):
                    writer.add_rows(*rows.slice(start, 16 * 1024).columns)
                await writer.finish()
                bare = self.folder / f"rows{number}"
                shutil.copytree(self.folder / f"columns{number}", bare)
                for name in SIDECAR_FILES:
                    (bare / name).unlink()
        finally:
            disk.close()

    @contextmanager
    def opened(self, kind: str, numbers: Iterable[int] = (0,)) -> Iterator[LocalScan]:
        layers = tuple((str(self.folder / f"{kind}{number}"), WHOLE_RING) for number in numbers)
        with open_located(
            CheckpointFiles(machine="", folder=str(self.folder), stacks=(ScanStack(WHOLE_RING, layers),), schema=SCHEMA)
        ) as scan:
            yield scan

    def typed(self, kind: str, asked: TypedRowsQuery, numbers: Iterable[int] = (0,)) -> int:
        with self.opened(kind, numbers) as scan:
            return sum(len(batch) for batch in scan(asked)[1])

    def stored(self) -> int:
        with self.opened("rows") as scan:
            return sum(len(batch) for batch in scan(StoredRowsQuery(range=WHOLE_RING))[1])

    def merged(self, kind: str, numbers: tuple[int, int]) -> int:
        with self.opened(kind, numbers[:1]) as one, self.opened(kind, numbers[1:]) as other:
            streams = [scan(StoredRowsQuery(range=WHOLE_RING, by_column=True))[1] for scan in (one, other)]
            return sum(len(batch) for batch in merge_replicas(ScanQuery(schema=SCHEMA, columns=ALL, now_s=0), streams))

    def from_parquet(self) -> int:
        with pq.ParquetFile(self.parquet) as file:
            return sum(len(batch) for batch in file.iter_batches())


def cases(layers: Layers) -> dict[str, Callable[[], int]]:
    whole, few = (
        TypedRowsQuery(range=WHOLE_RING, columns=ALL, now_s=0),
        TypedRowsQuery(range=WHOLE_RING, columns=NARROW, now_s=0),
    )
    timed = TypedRowsQuery(range=WHOLE_RING, columns=TIMES, now_s=0)
    half = KeyCondition("id", KeyOperator.LESS, ((layers.rows // 2).to_bytes(8),))
    filtered = TypedRowsQuery(range=WHOLE_RING, columns=ALL, now_s=0, conditions=(half,))
    return {
        "sidecar": lambda: layers.typed("columns", whole),
        "sidecar_2_columns": lambda: layers.typed("columns", few),
        "sidecar_times": lambda: layers.typed("columns", timed),
        "sidecar_filtered": lambda: 2 * layers.typed("columns", filtered),
        "sidecar_3_layers": lambda: layers.typed("columns", whole, range(3)),
        "rows": lambda: layers.typed("rows", whole),
        "rows_2_columns": lambda: layers.typed("rows", few),
        "rows_3_layers": lambda: layers.typed("rows", whole, range(3)),
        "rows_stored": layers.stored,
        "sidecar_quorum_of_equal": lambda: layers.merged("columns", (0, 0)),
        "sidecar_quorum_of_newer": lambda: layers.merged("columns", (0, 1)),
        "rows_quorum_of_equal": lambda: layers.merged("rows", (0, 0)),
        "rows_quorum_of_newer": lambda: layers.merged("rows", (0, 1)),
        "parquet": layers.from_parquet,
    }


def measure(name: str, act: Callable[[], int], rows: int) -> float:
    best_us = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        found = act()
        best_us = min(best_us, (time.process_time() - began) / rows * 1e6)
        assert found == rows, f"{name}: {found} rows of {rows}"
    return best_us


def profile(act: Callable[[], int]) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(act)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    missed = []
    with tempfile.TemporaryDirectory(prefix="bench-scan-") as folder:
        layers = Layers(Path(folder), arguments.rows)
        asyncio.run(layers.build())
        for name, act in cases(layers).items():
            if arguments.only and name not in arguments.only.split(","):
                continue
            spent_us = figures[f"{name}_us"] = round(measure(name, act, layers.rows), 3)
            limit = LIMITS_US.get(name)
            words = "" if limit is None else f", at most {limit:g}"
            if limit is not None and spent_us > limit:
                missed.append(name)
                words += ", MISSED"
            print(f"{name:24} {spent_us:7.3f} µs/row{words:24} {1 / spent_us:7.2f} M rows/s of a core")
            if arguments.profile:
                profile(act)
    print(json.dumps({"bench": "scan", "rows": arguments.rows, "missed": missed, **figures}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Replicas compared by hashes, as a plan that can be read on Spark's pages.

Tasks fetch the hashes of a range from one replica each; Spark groups them by bucket and keeps those of which there is
more than one version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from ebla.model.errors import EblaError, InternalError
from ebla.model.token import TokenRange, advance
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferResult, TransferSource
from ebla.pipeline.task_outcome import TaskFailed
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.spark_worker import prepare_worker
from ebla.transfers.task_bundles import estimate_range_bytes
from ebla.wire.transfer_messages import HashesQuery

HASHES_SCHEMA = "range int, bucket int, replica int, host string, hash binary, rows bigint, replica_rows bigint"


class HashRead(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The hashes of one range on one of its replicas. Both numbers are places in the job's lists."""

    range: int
    replica: int
    source: TransferSource
    query: HashesQuery
    size_bytes: int = 0
    """About what is to be read for it."""


_orders = msgspec.msgpack.Decoder(tuple[HashRead, ...])


def hash_reads(ranges: Sequence[ComparisonTask]) -> list[HashRead]:
    return [
        HashRead(
            range=place,
            replica=replica,
            source=msgspec.structs.replace(source, parts=()),
            query=HashesQuery(asked.range, asked.buckets, asked.gc_before_s),
            size_bytes=estimate_range_bytes(source, asked.range),
        )
        for place, asked in enumerate(ranges)
        for replica, source in enumerate(asked.sources)
    ]


def encode_hash_reads(task: Sequence[HashRead]) -> bytes:
    return msgspec.msgpack.encode(tuple(task))


@dataclass(frozen=True)
class HashTask:
    """A task of `mapInArrow`: rows come in with the number of a task, hashes go out."""

    tasks: tuple[bytes, ...]
    authority: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with FlightClient(self.authority) as client:
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    for order in _orders.decode(self.tasks[task]):
                        yield _read(client, order)


def _read(client: FlightClient, order: HashRead) -> pa.RecordBatch:
    try:
        found = client.get_hashes(order.source, order.query)
    except (EblaError, OSError) as error:
        raise TaskFailed(error) from error
    count = len(found)
    columns = {
        "range": pa.repeat(pa.scalar(order.range, pa.int32()), count),
        "bucket": found.column("bucket").cast(pa.int32()),
        "replica": pa.repeat(pa.scalar(order.replica, pa.int32()), count),
        "host": pa.repeat(str(order.source.host), count),
        "hash": found.column("hash").cast(pa.binary()),
        "rows": found.column("rows").cast(pa.int64()),
        "replica_rows": pa.repeat(pc.sum(found.column("rows")).cast(pa.int64()), count),
    }
    return pa.RecordBatch.from_pydict(columns)


def differing_buckets(hashes: DataFrame) -> DataFrame:
    """Buckets of which the replicas have more than one version."""
    replicas = f.collect_list(f.struct("replica", "hash", "rows")).alias("replicas")
    return hashes.groupBy("range", "bucket").agg(replicas).where("size(array_distinct(replicas.hash)) > 1")


def range_totals(hashes: DataFrame) -> DataFrame:
    """How many hashes were told of each range, and how many rows the replica has that has most."""
    return hashes.groupBy("range").agg(f.max("replica_rows").alias("rows"), f.count("*").alias("hashes"))


def compare_results(
    ranges: Sequence[ComparisonTask], different: Sequence[Row], counted: Sequence[Row]
) -> list[TransferResult]:
    """What the collected rows say of the ranges. Raises `InternalError` where a replica left a bucket out: it would
    look like one that is the same everywhere."""
    told_of = {row["range"]: row for row in counted}
    for place, asked in enumerate(ranges):
        if told_of[place]["hashes"] != asked.buckets * len(asked.sources):
            raise InternalError("a replica has not told the hashes of all buckets that it was asked for")
    told: list[TransferResult] = []
    for row in sorted(different, key=lambda row: (row["range"], row["bucket"])):
        asked = ranges[row["range"]]
        found = sorted(row["replicas"], key=lambda one: one["replica"])
        replicas = tuple((asked.sources[one["replica"]].host, bytes(one["hash"]), one["rows"]) for one in found)
        told.append(BucketDifference(bucket_range(asked, row["bucket"]), replicas))
    told += [ComparisonResult(asked.range, asked.buckets, told_of[place]["rows"]) for place, asked in enumerate(ranges)]
    return told


def bucket_range(asked: ComparisonTask, bucket: int) -> TokenRange:
    """As `TokenRange.split` cuts, without all the others."""
    width, start = asked.range.width, asked.range.start
    first, last = (width * edge // asked.buckets for edge in (bucket, bucket + 1))
    return TokenRange(advance(start, first), advance(start, last))

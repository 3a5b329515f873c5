"""Compares replicas by hashes, as a DataFrame plan that Spark's web pages show.

Each task fetches the hashes of a range from one replica; Spark groups them by bucket and keeps the buckets whose hashes
differ.
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from ebla.model.errors import EblaError, InternalError
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferResult, TransferSource
from ebla.pipeline.task_outcome import TaskFailed
from ebla.transfers.flight_client import FlightClient
from ebla.wire.transfer_messages import HashesQuery

HASHES_SCHEMA = "range int, bucket int, replica int, host string, hash binary, rows bigint, replica_rows bigint"


class HashRead(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The hashes of one range from one of its replicas. `range` and `replica` are positions in the job's lists."""

    range: int
    replica: int
    source: TransferSource
    query: HashesQuery
    size_bytes: int = 0
    """An estimate of what the replica reads for it."""


def hash_reads(ranges: Sequence[ComparisonTask]) -> list[HashRead]:
    return [
        HashRead(
            range=number,
            replica=replica,
            source=msgspec.structs.replace(source, parts=()),
            query=HashesQuery(task.range, task.buckets, task.gc_before_s),
            size_bytes=source.estimate_bytes(task.range),
        )
        for number, task in enumerate(ranges)
        for replica, source in enumerate(task.sources)
    ]


def read_hashes(client: FlightClient, read: HashRead) -> pa.RecordBatch:
    try:
        found = client.get_hashes(read.source, read.query)
    except (EblaError, OSError) as error:
        raise TaskFailed(error) from error
    count = len(found)
    columns = {
        "range": pa.repeat(pa.scalar(read.range, pa.int32()), count),
        "bucket": found.column("bucket").cast(pa.int32()),
        "replica": pa.repeat(pa.scalar(read.replica, pa.int32()), count),
        "host": pa.repeat(str(read.source.host), count),
        "hash": found.column("hash").cast(pa.binary()),
        "rows": found.column("rows").cast(pa.int64()),
        "replica_rows": pa.repeat(pc.sum(found.column("rows")).cast(pa.int64()), count),
    }
    return pa.RecordBatch.from_pydict(columns)


def differing_buckets(hashes: DataFrame) -> DataFrame:
    """The buckets whose hashes are not the same on all replicas."""
    replicas = f.collect_list(f.struct("replica", "hash", "rows")).alias("replicas")
    return hashes.groupBy("range", "bucket").agg(replicas).where("size(array_distinct(replicas.hash)) > 1")


def range_totals(hashes: DataFrame) -> DataFrame:
    """For each range the number of hashes that were read, and the rows of the replica that has most."""
    return hashes.groupBy("range").agg(f.max("replica_rows").alias("rows"), f.count("*").alias("hashes"))


def compare_results(
    ranges: Sequence[ComparisonTask], different: Sequence[Row], counted: Sequence[Row]
) -> list[TransferResult]:
    """The collected rows as results. Raises `InternalError` if a replica left out a bucket: it would look like one that
    is the same everywhere."""
    totals = {row["range"]: row for row in counted}
    for number, task in enumerate(ranges):
        if totals[number]["hashes"] != task.buckets * len(task.sources):
            raise InternalError("a replica has not sent the hashes of all buckets")
    results: list[TransferResult] = []
    buckets = {
        number: ranges[number].range.split(ranges[number].buckets) for number in {row["range"] for row in different}
    }
    for row in sorted(different, key=lambda row: (row["range"], row["bucket"])):
        task = ranges[row["range"]]
        by_replica = sorted(row["replicas"], key=lambda one: one["replica"])
        replicas = tuple((task.sources[one["replica"]].host, bytes(one["hash"]), one["rows"]) for one in by_replica)
        results.append(BucketDifference(buckets[row["range"]][row["bucket"]], replicas))
    results += [
        ComparisonResult(task.range, task.buckets, totals[number]["rows"]) for number, task in enumerate(ranges)
    ]
    return results

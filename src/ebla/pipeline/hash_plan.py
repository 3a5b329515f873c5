"""Replicas compared by hashes, as a plan that can be read on Spark's pages.

Tasks fetch the hashes of a range from one replica each; Spark groups them by bucket and keeps those of which there is
more than one version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from ebla.model.errors import EblaError, InternalError
from ebla.model.transfers import Compared, Different, RangeToCompare, Result, Source
from ebla.pipeline.attempts import prepare_worker
from ebla.pipeline.flight_client import FlightClient
from ebla.pipeline.task_bundles import share_bytes
from ebla.pipeline.task_outcome import TaskFailed
from ebla.wire.transfer_messages import HashesQuestion

HASHES_SCHEMA = "range int, bucket int, replica int, host string, hash binary, rows bigint"


class HashOrder(msgspec.Struct, frozen=True, array_like=True):
    """The hashes of one range on one of its replicas. Both numbers are places in the job's lists."""

    range: int
    replica: int
    source: Source
    question: HashesQuestion
    size_bytes: int = 0
    """About what is to be read for it."""


_orders = msgspec.msgpack.Decoder(tuple[HashOrder, ...])


def orders(ranges: Sequence[RangeToCompare]) -> list[HashOrder]:
    return [
        HashOrder(
            place,
            replica,
            msgspec.structs.replace(source, parts=()),
            HashesQuestion(asked.range, asked.buckets, asked.gc_before_s),
            share_bytes(source, asked.range),
        )
        for place, asked in enumerate(ranges)
        for replica, source in enumerate(asked.sources)
    ]


def encode_orders(task: Sequence[HashOrder]) -> bytes:
    return msgspec.msgpack.encode(tuple(task))


@dataclass(frozen=True)
class ReadHashes:
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


def _read(client: FlightClient, order: HashOrder) -> pa.RecordBatch:
    try:
        found = client.get_hashes(order.source, order.question)
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
    }
    return pa.RecordBatch.from_pydict(columns)


def differing(hashes: DataFrame) -> DataFrame:
    """Buckets of which the replicas have more than one version."""
    replicas = f.sort_array(f.collect_list(f.struct("replica", "hash", "rows"))).alias("replicas")
    by_bucket = hashes.groupBy("range", "bucket").agg(f.count_distinct("hash").alias("versions"), replicas)
    return by_bucket.where("versions > 1").orderBy("range", "bucket")


def totals(hashes: DataFrame) -> DataFrame:
    """How many rows each range has, on the replica that has most."""
    by_replica = hashes.groupBy("range", "replica").agg(f.sum("rows").alias("rows"), f.count("*").alias("buckets"))
    return by_replica.groupBy("range").agg(f.max("rows").alias("rows"), f.min("buckets").alias("buckets"))


def results(ranges: Sequence[RangeToCompare], different: Sequence[Row], counted: Sequence[Row]) -> list[Result]:
    """What the collected rows say of the ranges. Raises `InternalError` where a replica left a bucket out: it would
    look like one that is the same everywhere."""
    totals_of = {row["range"]: row for row in counted}
    if any(totals_of[place]["buckets"] != asked.buckets for place, asked in enumerate(ranges)):
        raise InternalError("a replica has not told the hashes of all buckets it was asked for")
    buckets = {place: ranges[place].range.split(ranges[place].buckets) for place in {row["range"] for row in different}}
    told: list[Result] = []
    for row in different:
        sources = ranges[row["range"]].sources
        replicas = tuple((sources[one["replica"]].host, bytes(one["hash"]), one["rows"]) for one in row["replicas"])
        told.append(Different(buckets[row["range"]][row["bucket"]], replicas))
    told += [Compared(asked.range, asked.buckets, totals_of[place]["rows"]) for place, asked in enumerate(ranges)]
    return told

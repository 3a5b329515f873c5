"""What is asked of replicas, and what is made of rows that Spark has collected."""

import uuid

import pytest
from pyspark.sql import Row

from ebla.model.errors import InternalError
from ebla.model.identity import Address, CheckpointId, HostId, TableId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferSource
from ebla.pipeline.hash_tasks import compare_results, hash_reads


def source(number: int) -> TransferSource:
    return TransferSource(
        host=HostId(uuid.UUID(int=number)),
        checkpoint=CheckpointId(uuid.UUID(int=2)),
        table=TableId(uuid.UUID(int=3)),
        parts=(),
        ticket=b"",
        flight=Address("127.0.0.1", 1),
    )


ASKED = ComparisonTask(range=WHOLE_RING, sources=(source(1), source(2)), buckets=4, gc_before_s=0)


def test_every_range_is_asked_of_every_replica() -> None:
    found = hash_reads([ASKED, ASKED])
    assert [(one.range, one.replica, one.source.host.int) for one in found] == [
        (0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2),
    ]  # fmt: skip


def test_differences_are_told_with_all_replicas() -> None:
    replicas = [Row(replica=1, hash=bytearray(b"b"), rows=5), Row(replica=0, hash=bytearray(b"a"), rows=6)]
    different = [Row(range=0, bucket=2, replicas=replicas)]
    differences = compare_results([ASKED], different, [Row(range=0, rows=9, hashes=8)])
    part = WHOLE_RING.split(4)[2]
    assert differences == [
        BucketDifference(part, ((ASKED.sources[0].host, b"a", 6), (ASKED.sources[1].host, b"b", 5))),
        ComparisonResult(WHOLE_RING, 4, 9),
    ]


def test_a_bucket_that_a_replica_left_out_does_not_count_as_equal() -> None:
    with pytest.raises(InternalError, match="all buckets"):
        compare_results([ASKED], [], [Row(range=0, rows=9, hashes=7)])

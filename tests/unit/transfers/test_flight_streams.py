"""Rows on their way into staging, without any node."""

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from ebla.model.identity import Address, AttemptId, HostId, SessionId, ShardNumber, TransferId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import ROWS_NAME, StagedFile, StagingKind, TransferTarget
from ebla.storage.codec.checksums import crc32
from ebla.transfers.flight_streams import FlightClientLimits, RowUpload
from ebla.wire.flight_format import byte_values
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")

TARGET = TransferTarget(
    host=HostId(uuid.UUID(int=1)),
    shard=ShardNumber(0),
    session=SessionId(uuid.UUID(int=2)),
    transfer=TransferId(uuid.UUID(int=3)),
    kind=StagingKind.ROWS,
    range=WHOLE_RING,
    ticket=b"ticket",
    flight=Address("127.0.0.1", 7001),
)
ATTEMPT = AttemptId(uuid.UUID(int=4))
RECORDS = [b"first", b"second", b"third"]


class Node:
    """`flight_streams.Opener`, and the stream: one attempt, of which what has come stays."""

    def __init__(self) -> None:
        self.received = b""

    @property
    def begin(self) -> PutAnswer:
        return PutAnswer(len(self.received))

    def retry(self, act: Callable[[], T], _progress: Callable[[], int] = lambda: 0) -> T:
        return act()

    def open_put(self, _target: TransferTarget, put: FlightPut, _timeout_s: float) -> Any:
        assert put.offset <= len(self.received)
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self.received += b"".join(byte_values(batch))

    def read_answer(self) -> PutAnswer:
        return PutAnswer(len(self.received))

    def finish(self, _metadata: bytes) -> PutAnswer:
        return PutAnswer(len(self.received), crc32(self.received, 0))

    def drop(self) -> None:
        pass


def test_rows_that_an_earlier_try_has_brought_are_not_sent_again() -> None:
    """A stream broke, and the node had no room for the next one: the put starts over under the same attempt."""
    node, whole = Node(), b"".join(RECORDS)
    for tried in range(len(RECORDS)):
        with RowUpload(node, TARGET, ATTEMPT, FlightClientLimits()) as put:
            for record in RECORDS[:tried]:
                put.send(record)
    assert node.received == b"firstsecond"
    with RowUpload(node, TARGET, ATTEMPT, FlightClientLimits()) as put:
        for record in RECORDS:
            put.send(record)
        assert put.finish() == StagedFile(name=ROWS_NAME, size_bytes=len(whole), checksum=crc32(whole, 0))
    assert node.received == whole

"""Tasks that move rows, without Spark and without Flight."""

import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import cast

import msgspec
import pyarrow as pa
import pytest

from ebla.model.errors import ConnectionLost, Corruption
from ebla.model.identity import Address, AttemptId, CheckpointId, HostId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.model.transfers import RowMove, RowPart, RowTarget, StagedFile, StagingKind, TransferSource, TransferTarget
from ebla.pipeline import row_tasks
from ebla.ports.transfer_engine import SourceDamaged
from ebla.storage.codec.row_file import rows_batch
from ebla.transfers.flight_client import FlightClient

ROWS = rows_batch([(b"\x80" + bytes(7) + b"key", b"value")])
DAMAGED = TokenRange(Token(5), Token(6))
GOOD, BROKEN = TransferId(uuid.UUID(int=1)), TransferId(uuid.UUID(int=2))


class Client:
    """`FlightClient`, as far as a task of rows uses it."""

    def __init__(self, authority_pem: bytes) -> None:
        self.authority_pem = authority_pem
        self.read: list[tuple[HostId, TokenRange]] = []

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_rows(self, source: TransferSource, token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        if token_range == DAMAGED:
            raise Corruption("a block has another checksum")
        self.read.append((source.host, token_range))
        return iter([ROWS])

    def put_rows(self, target: TransferTarget, _attempt: AttemptId, batches: Iterable[pa.RecordBatch]) -> StagedFile:
        size = sum(batch.nbytes for batch in batches)
        if target.transfer == BROKEN:
            raise ConnectionLost("the target went away")
        return StagedFile(name="rows", size_bytes=size)


def to(transfer: TransferId) -> RowTarget:
    host, session = HostId(uuid.UUID(int=7)), SessionId(uuid.UUID(int=8))
    target = TransferTarget(
        host=host,
        shard=ShardNumber(0),
        session=session,
        transfer=transfer,
        kind=StagingKind.ROWS,
        range=WHOLE_RING,
        ticket=b"",
        flight=Address("127.0.0.9", 7001),
    )
    return RowTarget(target)


def move(*transfers: TransferId) -> RowMove:
    host, table = HostId(uuid.UUID(int=7)), TableId(uuid.UUID(int=9))
    source = TransferSource(
        host=host,
        checkpoint=CheckpointId(uuid.UUID(int=3)),
        table=table,
        parts=(),
        ticket=b"",
        flight=Address("127.0.0.9", 7001),
    )
    return RowMove(range=WHOLE_RING, sources=(source,), targets=tuple(to(transfer) for transfer in transfers))


@pytest.fixture(autouse=True)
def without_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_tasks, "FlightClient", Client)


def client() -> FlightClient:
    return cast("FlightClient", Client(b""))


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rows-writer"]


def test_every_target_gets_the_rows() -> None:
    first, second = row_tasks.move_rows(client(), move(GOOD, TransferId(uuid.UUID(int=4))))
    assert (first.transfer, first.rows, len(first.files)) == (GOOD, 1, 1)
    assert second.files == first.files
    assert writers() == []


def test_a_target_that_fails_at_the_end_leaves_no_thread_of_another() -> None:
    """A Python worker of Spark's lives on for the next task, and so would they."""
    with pytest.raises(ConnectionLost):
        row_tasks.move_rows(client(), move(BROKEN, GOOD))
    for thread in writers():
        thread.join(20)
    assert writers() == []


def test_parts_are_read_in_order_each_from_its_own_sources() -> None:
    parts = WHOLE_RING.split(4)
    whole = move(GOOD)
    other = msgspec.structs.replace(whole.sources[0], host=HostId(uuid.UUID(int=70)))
    several = msgspec.structs.replace(
        whole, sources=(other, *whole.sources), parts=(RowPart(parts[0], (1,)), RowPart(parts[2], (0,)))
    )
    reader = Client(b"")
    (moved,) = row_tasks.move_rows(cast("FlightClient", reader), several)
    assert reader.read == [(whole.sources[0].host, parts[0]), (other.host, parts[2])]
    assert (moved.rows, len(moved.files)) == (2, 1)


def test_damage_at_a_source_is_told_from_damage_on_the_way() -> None:
    with pytest.raises(SourceDamaged):
        row_tasks.move_rows(client(), msgspec.structs.replace(move(GOOD), parts=(RowPart(DAMAGED, (0,)),)))

"""Nodes that keep what is staged and committed in memory, in place of Flight and CQL."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError, Unreachable
from ebla.model.identity import Address, AttemptId, HostId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import ROWS_NAME, StagedFile, StagingKind, TransferTarget
from ebla.source.contact_points import ContactPoints, CqlClient
from ebla.source.cql_client import BoundStatement, CqlRows
from ebla.source.write.write_job import WriteJob
from ebla.storage.codec.checksums import crc32
from ebla.storage.codec.row_file import decode_records
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.flight_streams import StagedRecordStream
from ebla.wire.table_calls import (
    CommitWriteAnswer,
    CommitWriteRequest,
    StagedRun,
    StagingPlan,
    StagingRoute,
)

SESSION = SessionId(uuid.UUID(int=1))
JOB = WriteJob(session=SESSION, table=TableId(uuid.UUID(int=2)), job="job", level=ConsistencyLevel.QUORUM)
HOSTS = tuple(HostId(uuid.UUID(int=100 + number)) for number in range(5))
Rows = dict[bytes, bytes]


def target(
    host: int, within: TokenRange, *, number: int = 0, folder: Path | None = None, machine: str = ""
) -> TransferTarget:
    name = f"{host} {within.start} {within.end} {number}"
    return TransferTarget(
        host=HOSTS[host],
        shard=ShardNumber(0),
        session=SESSION,
        transfer=TransferId(uuid.uuid5(SESSION, name)),
        kind=StagingKind.ROWS,
        range=within,
        ticket=b"ticket",
        flight=Address(f"127.0.0.{host + 1}", 7001),
        machine=machine,
        folder=str(folder or ""),
    )


def plan_of(
    schema: TableSchema,
    ranges: Sequence[TokenRange],
    hosts: Sequence[int],
    state: WriteJobState = WriteJobState.OPEN,
    timestamp_us: int = 1_700_000_000_000_000,
) -> StagingPlan:
    """Tablets with these ranges, each on all hosts."""
    targets = [target(host, one) for one in ranges for host in hosts]
    routes = [
        StagingRoute(one, tuple(range(place * len(hosts), (place + 1) * len(hosts))))
        for place, one in enumerate(ranges)
    ]
    return StagingPlan(
        schema=schema,
        state=state,
        timestamp_us=timestamp_us,
        targets=tuple(targets),
        routes=tuple(routes),
        authority=b"authority",
    )


@dataclass(kw_only=True)
class FakeNodes:
    """Staged rows by transfer and attempt. `broken` hosts answer by an error."""

    staged: dict[TransferId, dict[AttemptId, bytes]] = field(default_factory=dict)
    broken: dict[HostId, EblaError] = field(default_factory=dict)
    puts: list[HostId] = field(default_factory=list)
    merged: bool = False

    def connect(self) -> "FakeCarrier":
        return FakeCarrier(self)

    def check(self, host: HostId) -> None:
        if host in self.broken:
            raise self.broken[host]

    def rows(self, run: StagedRun) -> list[tuple[bytes, bytes]]:
        data = self.staged[run.transfer][run.attempt]
        return [item for batch in decode_records(data) for item in _items(batch)]


@dataclass
class FakeStaged(StagedRecordStream):
    batches: list[pa.RecordBatch]
    is_merged: bool

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)

    def cancel(self) -> None:
        pass


@dataclass
class FakeCarrier(FlightClient):
    nodes: FakeNodes

    def put_records(self, target: TransferTarget, attempt: AttemptId, records: Iterable[bytes]) -> StagedFile:
        self.nodes.puts.append(target.host)
        self.nodes.check(target.host)
        data = b"".join(records)
        attempts = self.nodes.staged.setdefault(target.transfer, {})
        assert attempt not in attempts
        attempts[attempt] = data
        return StagedFile(name=ROWS_NAME, size_bytes=len(data), checksum=crc32(data, 0))

    def get_staged_rows(
        self, target: TransferTarget, attempt: AttemptId, expected: StagedFile | None = None
    ) -> FakeStaged:
        assert expected is not None
        self.nodes.check(target.host)
        attempts = self.nodes.staged[target.transfer]
        assert crc32(attempts[attempt], 0) == expected.checksum
        wanted = list(attempts.values()) if self.nodes.merged else [attempts[attempt]]
        found = [batch for data in wanted for batch in decode_records(data)]
        if self.nodes.merged:
            items = sorted({item for batch in found for item in _items(batch)})
            arrays = [pa.array([item[place] for item in items], pa.binary()) for place in (0, 1)]
            found = [pa.RecordBatch.from_arrays(arrays, names=["key", "value"])]
        return FakeStaged(found, self.nodes.merged)

    def close(self) -> None:
        pass


class FakeContact(CqlClient):
    """Answers calls by their names, and keeps what it was asked."""

    def __init__(self, **answers: Callable[[Any], Any]) -> None:
        super().__init__(ContactPoints((Address("127.0.0.1", 9042),)))
        self.answers = answers
        self.calls: list[tuple[str, Any]] = []
        self.batches: list[tuple[list[BoundStatement], ConsistencyLevel, int]] = []
        self.statements: list[str] = []

    def call(self, call: Any, request: Any, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.calls.append((call.name, request))
        return self.answers[call.name](request)

    def query(self, statement: BoundStatement, *_: Any, **__: Any) -> CqlRows:
        self.calls.append(("query", statement.text))
        return CqlRows()

    def batch(
        self, statements: Sequence[BoundStatement], level: ConsistencyLevel, timeout_s: float, timestamp_us: int
    ) -> None:
        assert timeout_s > 0
        self.batches.append((list(statements), level, timestamp_us))


@dataclass
class FakeCommit:
    """Answers `commit_write` from a list; errors in it are raised. Then it is done."""

    answers: list[CommitWriteAnswer | EblaError] = field(default_factory=list)
    requests: list[CommitWriteRequest] = field(default_factory=list)

    def __call__(self, request: CommitWriteRequest) -> CommitWriteAnswer:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else CommitWriteAnswer()
        if isinstance(answer, EblaError):
            raise answer
        return answer


def down() -> EblaError:
    return Unreachable("it is down")


def _items(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    return list(zip(*(column.to_pylist() for column in batch.columns)))

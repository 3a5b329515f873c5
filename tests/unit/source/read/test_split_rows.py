"""Where a task reads the rows of its share from."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pytest

from ebla.model.cql_types import parse_type
from ebla.model.identity import Address, HostId, TableId
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.model.transfers import ScanStack
from ebla.source.read import local_scan, split_rows
from ebla.source.read.planner import InputSplit, SplitRange
from ebla.source.read.split_rows import SCANS_OPEN_MAX, SplitRows, TableFlightClient
from ebla.storage.codec.key_codec import partition_prefix
from ebla.wire.table_calls import CheckpointFiles, ReadSource
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery

SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)), "ks", "t", (Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),)
)
SOURCE = ReadSource(host=HostId(uuid.UUID(int=9)), flight=Address("127.0.0.1", 7001), ticket=b"ticket", machine="here")
TABLETS = WHOLE_RING.split(4 * SCANS_OPEN_MAX)
SHARE = InputSplit(
    schema=SCHEMA,
    columns=(ColumnSelector("k"),),
    now_s=1_000,
    authority=b"",
    sources=(SOURCE,),
    ranges=tuple(SplitRange(range=one, sources=(0,), needed=1) for one in TABLETS),
)


@dataclass(kw_only=True)
class Files:
    """Stub of layers on this machine; counts how many are open."""

    open: int = 0
    most: int = 0
    times: int = 0
    asked: list[TokenRange] = field(default_factory=list)
    partitions: list[tuple[bytes, ...]] = field(default_factory=list)

    @contextmanager
    def opened(self, located: CheckpointFiles) -> Iterator[local_scan.LocalScan]:
        self.open, self.times = self.open + 1, self.times + 1
        self.most = max(self.most, self.open)
        try:
            yield self.ask
        finally:
            self.open -= 1

    def ask(self, query: StoredRowsQuery | TypedRowsQuery) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        self.asked.append(query.range)
        self.partitions.append(query.partitions)
        return pa.schema([]), iter(())


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    found = Files()

    def locate(_flight: TableFlightClient, _source: ReadSource, asked: TokenRange) -> CheckpointFiles:
        tablet = next(one for one in TABLETS if one.covers(asked))
        return CheckpointFiles(machine="here", folder="folder", stacks=(ScanStack(tablet, ()),), schema=SCHEMA)

    monkeypatch.setattr(split_rows, "is_same_machine", lambda _machine: True)
    monkeypatch.setattr(split_rows, "is_reachable_folder", lambda _machine, _folder: True)
    monkeypatch.setattr(local_scan, "open_located", found.opened)
    monkeypatch.setattr(TableFlightClient, "locate", locate)
    return found


def test_a_share_of_many_tablets_has_the_files_of_few_open_at_once(files: Files) -> None:
    with SplitRows(SHARE) as rows:
        for piece in SHARE.ranges:
            assert list(rows.open_rows((0,), piece.range)) == []
    assert files.asked == list(TABLETS)
    assert files.most == SCANS_OPEN_MAX
    assert files.open == 0


def test_pieces_of_one_tablet_share_what_is_open(files: Files) -> None:
    with SplitRows(SHARE) as rows:
        for part in TABLETS[3].split(5):
            assert list(rows.open_rows((0,), part)) == []
    assert files.times == 1


def test_each_question_names_the_partitions_of_its_range_alone(files: Files) -> None:
    """One that would name none is not asked: it would be for all of them."""
    tokens = (TABLETS[3].start, Token(TABLETS[3].start + 1), TABLETS[3].end, Token(TABLETS[3].end + 1))
    named = tuple(sorted(partition_prefix(token, b"key") for token in tokens))
    with SplitRows(msgspec.structs.replace(SHARE, partitions=named)) as rows:
        for tablet in TABLETS[2:6]:
            assert list(rows.open_rows((0,), tablet)) == []
    assert files.asked == list(TABLETS[2:5])
    assert files.partitions == [named[:1], named[1:3], named[3:]]

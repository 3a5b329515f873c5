"""A table of real nodes read in bulk: one snapshot per read, a ticket that outlives the process, files opened on the
same machine, and nothing left when the table is dropped."""

import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.flight_rig import QUICK, asked, json_of

from ebla.model.errors import EblaError, NotFound, Refused
from ebla.model.identity import CheckpointId, TableId, TopologyVersion
from ebla.model.selection import ColumnSelector
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import TransferSource
from ebla.transfers.flight_client import FlightClient
from ebla.wire.flight_format import byte_values
from ebla.wire.table_calls import CheckpointFiles, OpenTableReadRequest, ReadId, StackSizeEstimate
from ebla.wire.transfer_messages import BulkStatusRequest, LocateQuery, TypedRowsQuery
from ebla.wire.verbs import BULK_STATUS, OPEN_TABLE_READ

ROWS = 5
COLUMNS = (ColumnSelector("id"), ColumnSelector("total"))
TABLES = {"shop.orders": ("--tablets", "2"), "ring.orders": ("--vnodes",)}
WRITTEN = {number: 10 * number for number in range(ROWS)}
LATER = WRITTEN | {0: 777}


class Reader:
    """Reads of one table at the only node."""

    def __init__(self, nodes: LocalNodes, name: str) -> None:
        self._nodes = nodes
        self.name = name
        made = json_of(nodes, "table", "create", name, "id int PRIMARY KEY, total int", *TABLES[name])
        self._table = TableId(uuid.UUID(made["id"]))
        self._client = FlightClient((nodes.nodes[0].folder.tls / "authority.pem").read_bytes(), QUICK)

    def put(self, number: int, total: int) -> None:
        json_of(self._nodes, "row", "put", self.name, f"id={number}", f"total={total}")

    def open(self, read: ReadId) -> tuple[TransferSource, tuple[StackSizeEstimate, ...]]:
        request = OpenTableReadRequest(read=read, table=self._table, version=TopologyVersion(1), life_ms=600_000)
        answer = asked(self._nodes, self._nodes.nodes[0].folder.bulk_socket, OPEN_TABLE_READ, request)
        one = answer.source
        nothing = CheckpointId(uuid.UUID(int=0))
        return TransferSource(
            host=one.host,
            checkpoint=nothing,
            table=self._table,
            parts=(),
            ticket=one.ticket,
            flight=one.flight,
            machine=one.machine,
        ), answer.stacks

    def rows(self, source: TransferSource, within: TokenRange = WHOLE_RING) -> dict[int, int]:
        query = TypedRowsQuery(range=within, columns=COLUMNS, now_s=0)
        found = [row for batch in self._client.get_batches(source, query) for row in batch.to_pylist()]
        return {row["id"]: row["total"] for row in found}

    def rows_once_back(self, source: TransferSource) -> dict[int, int] | None:
        try:
            return self.rows(source)
        except Refused:
            raise
        except EblaError:
            return None  # it is not up yet

    def located(self, source: TransferSource) -> CheckpointFiles:
        (batch,) = list(self._client.get_batches(source, LocateQuery(WHOLE_RING)))
        (data,) = byte_values(batch)
        return msgspec.msgpack.decode(data, type=CheckpointFiles)

    def close(self) -> None:
        self._client.close()


def test_a_read_has_one_point_and_its_ticket_outlives_the_process(make_nodes: Callable[..., LocalNodes]) -> None:
    nodes = make_nodes(1, shards=2)
    nodes.start_all()
    opened = [_read_at_one_point(Reader(nodes, name)) for name in TABLES]
    folders = [Path(reader.located(source).folder) for reader, source in opened]
    assert kept(nodes) == 2 * len(TABLES)
    os.kill(nodes.pid("bulk"), signal.SIGKILL)
    for reader, source in opened:
        eventually(lambda: reader.rows_once_back(source) == LATER, "a new point is taken by the old ticket")  # noqa: B023  # looked at before the next
    assert not any(folder.exists() for folder in folders)
    assert kept(nodes) == len(TABLES)
    for reader, source in opened:
        json_of(nodes, "table", "drop", reader.name)
        with pytest.raises(NotFound, match="it was dropped"):
            reader.rows(source)
        reader.close()
    eventually(lambda: kept(nodes) == 0, "nothing is kept of dropped tables")


def _read_at_one_point(reader: Reader) -> tuple[Reader, TransferSource]:
    for number, total in WRITTEN.items():
        reader.put(number, total)
    first, second = ReadId(uuid.uuid4()), ReadId(uuid.uuid4())
    source, stacks = reader.open(first)
    assert ROWS - len(stacks) <= sum(one.rows for one in stacks) <= ROWS
    assert sum(one.size_bytes for one in stacks) > 0
    reader.put(0, LATER[0])
    assert reader.rows(source) == WRITTEN
    lower, upper = [reader.rows(source, half) for half in WHOLE_RING.split(2)]
    assert (lower | upper, len(lower) + len(upper)) == (WRITTEN, ROWS)
    assert reader.rows(reader.open(first)[0]) == WRITTEN
    assert reader.rows(reader.open(second)[0]) == LATER
    located = reader.located(source)
    assert located.machine == source.machine
    assert (Path(located.folder) / located.machine).is_file()
    layers = [folder for stack in located.stacks for folder, _ in stack.layers]
    assert layers
    assert all(folder.startswith(f"{located.folder}/") and Path(folder).is_dir() for folder in layers)
    return reader, source


def kept(nodes: LocalNodes) -> int:
    return asked(nodes, nodes.nodes[0].folder.bulk_socket, BULK_STATUS, BulkStatusRequest()).reads

"""The Flight server of a real node reads checkpoints of real shards, stages and seals files and rows, and survives a
closed session, renewed certificates, and a stop while a reader sleeps."""

import os
import signal
import ssl
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from tests.cluster.conftest import LocalNodes, eventually, is_alive
from tests.cluster.flight_rig import QUICK, asked, json_of

from ebla.cli.cluster.local_cluster import renew_certificates
from ebla.model.errors import Refused
from ebla.model.identity import AttemptId, JobId, SessionId, ShardNumber, TableId, TopologyVersion, TransferId
from ebla.model.selection import ColumnSelector
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import StagedFile, StagingKind, TransferSource, TransferTarget
from ebla.runtime.system_clock import SystemClock
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.wire.transfer_messages import (
    BulkStatusAnswer,
    BulkStatusRequest,
    CloseSessionRequest,
    HashesQuery,
    OpenSessionRequest,
    OpenStagingRequest,
    SealRequest,
    TakeCheckpointRequest,
    TypedRowsQuery,
)
from ebla.wire.verbs import BULK_STATUS, CLOSE_SESSION, OPEN_SESSION, OPEN_STAGING, SEAL, TAKE_CHECKPOINT, A, Q, Verb

ROWS = 12
Make = Callable[..., LocalNodes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session of a bulk job on a node with a table of some rows."""

    nodes: LocalNodes
    id: SessionId
    table: TableId
    version: TopologyVersion

    @property
    def client(self) -> FlightClient:
        return FlightClient((self.nodes.nodes[0].folder.tls / "authority.pem").read_bytes(), QUICK)

    def bulk(self, verb: Verb[Q, A], request: Q) -> A:
        return asked(self.nodes, self.nodes.nodes[0].folder.bulk_socket, verb, request)

    def source(self) -> TransferSource:
        wanted = TakeCheckpointRequest(session=self.id, table=self.table, range=WHOLE_RING, version=self.version)
        return self.bulk(TAKE_CHECKPOINT, wanted).source

    def target(self, kind: StagingKind) -> TransferTarget:
        shard, transfer = ShardNumber(0), TransferId(uuid.uuid4())
        wanted = OpenStagingRequest(
            session=self.id,
            transfer=transfer,
            table=self.table,
            shard=shard,
            range=WHOLE_RING,
            version=self.version,
            kind=kind,
            size_bytes=1000,
        )
        return self.bulk(OPEN_STAGING, wanted).target

    def status(self) -> BulkStatusAnswer:
        return self.bulk(BULK_STATUS, BulkStatusRequest())

    def close(self) -> None:
        asked(self.nodes, self.nodes.nodes[0].folder.control_socket, CLOSE_SESSION, CloseSessionRequest(self.id))


def opened(make_nodes: Make, columns: str = "id int PRIMARY KEY, total int", settings: Sequence[str] = ()) -> Session:
    nodes = make_nodes(1, settings)
    nodes.start_all()
    made = json_of(nodes, "table", "create", "shop.orders", columns, "--tablets", "1")
    table, session = TableId(uuid.UUID(made["id"])), SessionId(uuid.uuid4())
    request = OpenSessionRequest(session=session, table=table, job=JobId(uuid.uuid4()), life_ms=60_000)
    answer = asked(nodes, nodes.nodes[0].folder.control_socket, OPEN_SESSION, request)
    return Session(nodes=nodes, id=session, table=table, version=answer.version)


def test_rows_and_files_of_a_checkpoint_come_out_and_go_in(make_nodes: Make) -> None:
    session = opened(make_nodes)
    for number in range(ROWS):
        json_of(session.nodes, "row", "put", "shop.orders", f"id={number}", f"total={10 * number}")
    target = session.target(StagingKind.FILES)
    source = session.source()
    attempt = AttemptId(uuid.uuid4())
    query = TypedRowsQuery(range=WHOLE_RING, columns=(ColumnSelector("id"), ColumnSelector("total")), now_s=0)
    with session.client as client:
        rows = [row for batch in client.get_batches(source, query) for row in batch.to_pylist()]
        assert sorted((row["id"], row["total"]) for row in rows) == [(number, 10 * number) for number in range(ROWS)]
        hashes = client.get_hashes(source, HashesQuery(WHOLE_RING, 4, 0))
        assert sum(hashes.column("rows").to_pylist()) == ROWS

        staged: list[StagedFile] = []
        for place, layer in enumerate(source.parts[0].layers):
            for file in layer.files:
                wanted = CheckpointFileRef(0, place, file.name)
                staged.append(client.move_file(source, wanted, target, attempt, f"{place}/{file.name}"))
        assert session.status().received_bytes == source.size_bytes
        ranges = tuple(layer.range for layer in source.parts[0].layers)
        sealed = session.bulk(
            SEAL,
            SealRequest(
                session=session.id, transfer=target.transfer, attempt=attempt, files=tuple(staged), layers=ranges
            ),
        )
        assert (sealed.size_bytes, sealed.copied_files) == (source.size_bytes, 0)

        rows_target = session.target(StagingKind.ROWS)
        brought = client.put_rows(rows_target, attempt, client.get_rows(source, WHOLE_RING))
        sealed = session.bulk(
            SEAL, SealRequest(session=session.id, transfer=rows_target.transfer, attempt=attempt, files=(brought,))
        )
        assert sealed.size_bytes

        session.close()
        with pytest.raises(Refused, match="session"):
            list(client.get_rows(source, WHOLE_RING))
        with pytest.raises(Refused, match="session"):
            client.put_rows(rows_target, AttemptId(uuid.uuid4()), [])
    status = session.status()
    assert status.refused_closed_session >= 2
    assert status.streams == 0


def test_the_door_shows_a_renewed_certificate(make_nodes: Make) -> None:
    session = opened(make_nodes)
    json_of(session.nodes, "row", "put", "shop.orders", "id=1", "total=2")
    node = session.nodes.nodes[0]
    source = session.source()
    renew_certificates(session.nodes.nodes, SystemClock())
    kept = (node.folder.tls / "node.pem").read_text().split()

    def shown() -> list[str]:
        try:
            return ssl.get_server_certificate((source.flight.host, source.flight.port), timeout=2).split()
        except OSError:
            return []  # the server is restarting

    eventually(lambda: shown() == kept, "the new certificate is shown")
    with session.client as client:
        assert sum(len(batch) for batch in client.get_rows(source, WHOLE_RING)) == 1


def test_a_node_stops_in_time_while_a_reader_sleeps(make_nodes: Make) -> None:
    large_statements = [f"limits.cql_statement_bytes_max={16 << 20}"]
    session = opened(make_nodes, "id int PRIMARY KEY, photo blob", large_statements)
    for number in range(8):
        json_of(session.nodes, "row", "put", "shop.orders", f"id={number}", f"photo=0x{os.urandom(4 << 20).hex()}")
    source = session.source()
    pid, control = session.nodes.pid("bulk"), session.nodes.nodes[0].running_pid()
    assert control is not None
    with session.client as client:
        rows = client.get_rows(source, WHOLE_RING)
        next(rows)
        assert session.status().streams == 1
        os.kill(control, signal.SIGTERM)
        eventually(lambda: not is_alive(control) and not is_alive(pid), "the node is gone", 12.0)
    assert "killed" not in session.nodes.output()

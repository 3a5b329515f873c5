"""Rows of tables over Flight, behind the tickets of a read, and where their files are."""

import uuid
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from ebla.model.errors import InternalError
from ebla.model.identity import CheckpointId, TableId
from ebla.model.token import TokenRange
from ebla.model.transfers import TransferSource
from ebla.transfers.flight_client import FlightClient
from ebla.wire.flight_format import byte_values
from ebla.wire.table_calls import CheckpointFiles, ReadSource
from ebla.wire.transfer_messages import FlightGet, FlightQuery, LocateQuery, StoredRowsQuery, TypedRowsQuery

_located = msgspec.msgpack.Decoder(CheckpointFiles)
_NONE = uuid.UUID(int=0)


class TableFlightClient(FlightClient):
    """For one run of a job, and one thread of it."""

    def __init__(self, authority_pem: bytes, run: str) -> None:
        super().__init__(authority_pem)
        self._run = run

    def get_table_rows(self, source: ReadSource, query: StoredRowsQuery | TypedRowsQuery) -> Iterator[pa.RecordBatch]:
        return self._batches(_with_ticket(source), query)

    def locate(self, source: ReadSource, token_range: TokenRange) -> CheckpointFiles:
        found = list(self._batches(_with_ticket(source), LocateQuery(token_range)))
        if len(found) != 1 or len(found[0]) != 1:
            raise InternalError(f"{source.flight} did not say where its files are")
        return _located.decode(byte_values(found[0])[0])

    def _told(self, source: TransferSource, query: FlightQuery) -> FlightGet:
        return FlightGet(source.ticket, query, self._run)


def _with_ticket(source: ReadSource) -> TransferSource:
    """The ticket says which checkpoint it is; no parts of it are known here."""
    return TransferSource(
        source.host, CheckpointId(_NONE), TableId(_NONE), (), source.ticket, source.flight, source.machine
    )

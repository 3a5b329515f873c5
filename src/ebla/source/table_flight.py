"""Rows of tables over Flight, behind the tickets of a read, and where their files are."""

import uuid
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from ebla.model.errors import InternalError
from ebla.model.identity import CheckpointId, TableId
from ebla.model.token import TokenRange
from ebla.model.transfers import Source
from ebla.pipeline.flight_client import FlightClient
from ebla.wire.flight_forms import bytes_in
from ebla.wire.table_access import Located, ReadSource
from ebla.wire.transfer_messages import FlightGet, LocateQuestion, Question, StoredRowsQuestion, TypedRowsQuestion

_located = msgspec.msgpack.Decoder(Located)
_NONE = uuid.UUID(int=0)


class TableFlight(FlightClient):
    """For one run of a job, and one thread of it."""

    def __init__(self, authority_pem: bytes, run: str) -> None:
        super().__init__(authority_pem)
        self._run = run

    def get_table_rows(
        self, source: ReadSource, question: StoredRowsQuestion | TypedRowsQuestion
    ) -> Iterator[pa.RecordBatch]:
        return self._batches(_with_ticket(source), question)

    def locate(self, source: ReadSource, token_range: TokenRange) -> Located:
        found = list(self._batches(_with_ticket(source), LocateQuestion(token_range)))
        if len(found) != 1 or len(found[0]) != 1:
            raise InternalError(f"{source.flight} did not say where its files are")
        return _located.decode(bytes_in(found[0])[0])

    def _told(self, source: Source, question: Question) -> FlightGet:
        return FlightGet(source.ticket, question, self._run)


def _with_ticket(source: ReadSource) -> Source:
    """The ticket says which checkpoint it is; no parts of it are known here."""
    return Source(source.host, CheckpointId(_NONE), TableId(_NONE), (), source.ticket, source.flight, source.machine)

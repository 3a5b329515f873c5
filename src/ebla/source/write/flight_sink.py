"""Rows to the staging of nodes over Flight, patient with those that have no room for another stream just now."""

import time
from collections.abc import Iterable

from ebla.model.errors import Overloaded
from ebla.model.identity import AttemptId
from ebla.model.transfers import StagedFile, TransferTarget
from ebla.transfers.flight_calls import FlightClientLimits, StagedRecordStream
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.flight_puts import RowUpload


class FlightSink:
    """For one thread at a time."""

    def __init__(self, authority: bytes, limits: FlightClientLimits | None = None) -> None:
        self._limits = limits or FlightClientLimits()
        self._client = FlightClient(authority, self._limits)

    def close(self) -> None:
        self._client.close()

    def put_records(self, target: TransferTarget, attempt: AttemptId, records: Iterable[bytes]) -> StagedFile:
        """`records` can be gone through again. A node that is busy is asked for as long as `room_s`: nothing is held
        meanwhile that others might wait for."""
        waited_s = 0.0
        while True:
            try:
                with RowUpload(self._client, target, attempt, self._limits) as put:
                    for record in records:
                        put.send(record)
                    return put.finish()
            except Overloaded:
                if waited_s >= self._limits.room_s:
                    raise
            time.sleep(self._limits.room_pause_s)
            waited_s += self._limits.room_pause_s

    def get_staged(self, target: TransferTarget, attempt: AttemptId, expected: StagedFile) -> StagedRecordStream:
        """What an attempt has staged there, in key order; or, once it is sealed, what all that count have."""
        return self._client.get_staged_rows(target, attempt, expected)

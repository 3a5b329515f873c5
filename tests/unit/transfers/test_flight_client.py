"""When a task asks a node again, without any node."""

import uuid
from dataclasses import dataclass
from typing import Any, cast

import pytest

from ebla.model.errors import EblaError, Overloaded, Unreachable
from ebla.model.identity import AttemptId
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.transfers import flight_client
from ebla.transfers.flight_client import FlightClient
from ebla.transfers.flight_streams import FlightClientLimits

LIMITS = FlightClientLimits(attempts_max=3, pause_s=0.001, overload_pause_s=0.001)


@dataclass(slots=True)
class FailingCall:
    fails_with: EblaError
    fails: int
    times: int = 0

    def __call__(self) -> int:
        self.times += 1
        if self.times <= self.fails:
            raise self.fails_with
        return self.times


def test_a_node_without_room_is_asked_until_it_has_some() -> None:
    """More tasks than a node takes streams: that is no failure of theirs."""
    with FlightClient(b"", LIMITS) as client:
        assert client.retry(FailingCall(Overloaded("16 streams are under way"), 20), overload_s=60) == 21


def test_but_not_for_ever() -> None:
    call = FailingCall(Overloaded("16 streams are under way"), 1_000)
    with FlightClient(b"", LIMITS) as client, pytest.raises(Overloaded):
        client.retry(call, overload_s=0.005)
    assert call.times == 5 + LIMITS.attempts_max


@pytest.mark.parametrize("error", [Overloaded("16 streams are under way"), Unreachable("connection refused")])
def test_other_tries_and_those_who_hold_something_are_counted(error: EblaError) -> None:
    call = FailingCall(error, 1_000)
    overload_s = 60.0 if isinstance(error, Unreachable) else 0.0
    with FlightClient(b"", LIMITS) as client, pytest.raises(type(error)):
        client.retry(call, overload_s=overload_s)
    assert call.times == LIMITS.attempts_max


STAGED = StagedFile(name=ROWS_NAME, size_bytes=3, checksum=7)
ATTEMPT = AttemptId(uuid.UUID(int=1))


@dataclass(slots=True)
class FailingUpload:
    """`RowUpload`."""

    call: FailingCall

    def __enter__(self) -> "FailingUpload":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, _record: bytes) -> None:
        pass

    def finish(self) -> StagedFile:
        self.call()
        return STAGED


@pytest.mark.parametrize(
    ("error", "fails", "times"),
    [
        (Overloaded("16 streams are open"), 0, 1),
        (Overloaded("16 streams are open"), 3, 4),
        (Overloaded("16 streams are open"), 1_000, 4),
        (Unreachable("connection refused"), 1_000, 1),
    ],
)
def test_an_upload_is_repeated_only_for_room_and_only_pauses_count(
    error: EblaError, fails: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats itself after other errors."""
    call = FailingCall(error, fails)

    def upload(*_: Any) -> FailingUpload:
        return FailingUpload(call)

    monkeypatch.setattr(flight_client, "RowUpload", upload)
    limits = FlightClientLimits(overload_s=0.003, overload_pause_s=0.001)
    with FlightClient(b"", limits) as client:
        if fails < times:
            assert client.put_records(cast("TransferTarget", None), ATTEMPT, [b"row"]) == STAGED
        else:
            with pytest.raises(type(error)):
                client.put_records(cast("TransferTarget", None), ATTEMPT, [b"row"])
    assert call.times == times

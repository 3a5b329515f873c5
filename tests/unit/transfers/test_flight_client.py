"""When a task asks a node again, without any node."""

from dataclasses import dataclass

import pytest

from ebla.model.errors import EblaError, Overloaded, Unreachable
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

"""What an error says of itself."""

from ebla.model.errors import (
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    DiskFull,
    Fault,
    InternalError,
    InvalidRequest,
    Outcome,
    Overloaded,
    Refused,
    Stale,
    TooFewReplicas,
    Unavailable,
    Unreachable,
)


def test_the_text_has_the_advice_where_there_is_one() -> None:
    assert str(Unreachable("no route to 127.0.0.3:7000")) == "no route to 127.0.0.3:7000"
    assert str(Unreachable("no route", advice="start the node")) == "no route; start the node"


def test_an_error_tells_its_outcome_and_fault() -> None:
    assert (Unreachable.outcome, Unreachable.fault) == (Outcome.NOT_APPLIED, Fault.PEER)
    assert (DeadlineExceeded.outcome, DeadlineExceeded.fault) == (Outcome.UNKNOWN, Fault.PEER)


def test_a_restart_an_overload_or_a_cut_connection_is_transient() -> None:
    for transient in (ConnectionLost, DeadlineExceeded, Overloaded, TooFewReplicas, Unavailable, Unreachable):
        assert transient.is_transient
    for final in (Corruption, DiskFull, InternalError, InvalidRequest, Refused, Stale):
        assert not final.is_transient

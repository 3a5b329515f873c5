"""Errors across the wire."""

import pytest

from ebla.model import errors
from ebla.model.errors import EblaError, InternalError, Outcome, Refused, Stale
from ebla.wire.errors import ERROR_TAGS, error_from_frame, failure_frame
from ebla.wire.frames import FailureFrame, decode, encode


@pytest.mark.parametrize("kind", ERROR_TAGS.values(), ids=lambda kind: kind.__name__)
def test_every_class_comes_back(kind: type[EblaError]) -> None:
    frame = decode(encode(failure_frame(3, kind("what", advice="do"))))
    assert isinstance(frame, FailureFrame)
    back = error_from_frame(frame)
    assert type(back) is kind
    assert (back.message, back.advice, back.outcome) == ("what", "do", kind.outcome)


def test_every_error_of_the_model_has_a_tag() -> None:
    classes = [
        value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, EblaError) and value is not EblaError and name[0] != "_"
    ]
    assert sorted(kind.__name__ for kind in classes) == sorted(kind.__name__ for kind in ERROR_TAGS.values())


def test_a_subclass_travels_as_its_ancestor() -> None:
    class Fenced(Stale):
        pass

    assert failure_frame(1, Fenced("x")).error == "stale"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_newer_error_keeps_text_and_outcome(outcome: Outcome) -> None:
    error = error_from_frame(FailureFrame(id=1, error="from_the_future", outcome=outcome, message="what", advice="do"))
    assert isinstance(error, InternalError)
    assert error.outcome is outcome
    assert "from_the_future: what" in error.message
    assert error.advice == "do"


def test_an_open_outcome_is_never_understated() -> None:
    """A newer peer may have changed what a known class says; `Refused` would claim that nothing happened."""
    error = error_from_frame(FailureFrame(id=1, error="refused", outcome=Outcome.UNKNOWN, message="perhaps"))
    assert not isinstance(error, Refused)
    assert error.outcome is Outcome.UNKNOWN

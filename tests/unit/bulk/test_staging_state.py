"""The table of what may happen to staging: total, reachable, and with one winner."""

import uuid

import pytest

from ebla.bulk.staging_state import TRANSITIONS, Event, Phase, Refusal, SealRefused, StagingState
from ebla.model.errors import Refused
from ebla.model.identity import AttemptId

ONE, TWO = AttemptId(uuid.UUID(int=1)), AttemptId(uuid.UUID(int=2))


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == {(phase, event) for phase in Phase for event in Event}


def test_every_phase_and_refusal_is_reached() -> None:
    reached, pending = {Phase.OPEN}, [Phase.OPEN]
    refusals = set()
    while pending:
        phase = pending.pop()
        for event in Event:
            outcome = TRANSITIONS[phase, event]
            if isinstance(outcome, Refusal):
                refusals.add(outcome)
            elif outcome not in reached:
                reached.add(outcome)
                pending.append(outcome)
    assert reached == set(Phase)
    assert refusals == set(Refusal)


def test_nothing_leads_back_from_sealed() -> None:
    for event in Event:
        assert TRANSITIONS[Phase.SEALED, event] not in (Phase.OPEN, Phase.SEALING)
        assert not isinstance(TRANSITIONS[Phase.RELEASED, event], Phase) or event is Event.RELEASE


def test_a_seal_that_fails_names_nobody() -> None:
    """INV-XFER-2."""
    state = StagingState().put(ONE, 5).put(TWO, 5).put(ONE, 5)
    assert state.attempts == (ONE, TWO)
    sealing = state.sealing(ONE)
    assert sealing.sealing(ONE) == sealing
    with pytest.raises(SealRefused, match=f"being sealed.*{ONE}"):
        sealing.sealing(TWO)
    with pytest.raises(Refused, match="nothing more"):
        sealing.put(ONE, 5)
    sealed = sealing.failed().sealing(TWO).sealed()
    assert (sealed.phase, sealed.winner, sealed.attempts) == (Phase.SEALED, TWO, (TWO,))
    assert sealed.released().phase is Phase.RELEASED


def test_attempts_are_bounded_and_may_go() -> None:
    state = StagingState().put(ONE, 1)
    with pytest.raises(Refused, match="attempts were made"):
        state.put(TWO, 1)
    assert state.without(ONE).put(TWO, 1).attempts == (TWO,)

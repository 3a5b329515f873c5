"""The table of what may happen to staging: total, reachable, and with one winner."""

import uuid

import pytest

from ebla.bulk.staging_state import TRANSITIONS, SealRefused, StagingEvent, StagingRefusal, StagingState, TransferPhase
from ebla.model.errors import Refused
from ebla.model.identity import AttemptId

ONE, TWO, THREE = (AttemptId(uuid.UUID(int=number)) for number in (1, 2, 3))


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == {(phase, event) for phase in TransferPhase for event in StagingEvent}


def test_every_phase_and_refusal_is_reached() -> None:
    reached, pending = {TransferPhase.OPEN}, [TransferPhase.OPEN]
    refusals = set()
    while pending:
        phase = pending.pop()
        for event in StagingEvent:
            outcome = TRANSITIONS[phase, event]
            if isinstance(outcome, StagingRefusal):
                refusals.add(outcome)
            elif outcome not in reached:
                reached.add(outcome)
                pending.append(outcome)
    assert reached == set(TransferPhase)
    assert refusals == set(StagingRefusal)


def test_nothing_leads_back_from_sealed() -> None:
    for event in StagingEvent:
        assert TRANSITIONS[TransferPhase.SEALED, event] not in (TransferPhase.OPEN, TransferPhase.SEALING)
        assert (
            not isinstance(TRANSITIONS[TransferPhase.RELEASED, event], TransferPhase) or event is StagingEvent.RELEASE
        )


def test_a_seal_that_fails_names_nobody() -> None:
    """INV-XFER-2."""
    state = StagingState().put(ONE, 5).put(TWO, 5).put(ONE, 5)
    assert state.attempts == {ONE, TWO}
    sealing = state.sealing([ONE])
    assert sealing.sealing([ONE]) == sealing
    with pytest.raises(SealRefused, match=f"being sealed.*{ONE}"):
        sealing.sealing([TWO])
    with pytest.raises(Refused, match="nothing more"):
        sealing.put(ONE, 5)
    sealed = sealing.failed().sealing([TWO]).sealed()
    assert (sealed.phase, sealed.winners, sealed.attempts) == (TransferPhase.SEALED, (TWO,), frozenset([TWO]))
    assert sealed.released().phase is TransferPhase.RELEASED


def test_a_set_of_attempts_is_the_same_however_it_is_named() -> None:
    """INV-XFER-2: all of them and no other."""
    sealed = StagingState().put(THREE, 5).sealing([TWO, ONE]).sealed()
    assert (sealed.winners, sealed.attempts) == ((ONE, TWO), frozenset([ONE, TWO]))
    assert sealed.sealing([ONE, TWO]) == sealed
    for others in ([ONE], [ONE, TWO, THREE], [ONE, THREE]):
        with pytest.raises(SealRefused, match=f"{ONE}, {TWO}") as caught:
            sealed.sealing(others)
        assert caught.value.winners == (ONE, TWO)


def test_of_many_attempts_that_count_a_few_are_told_by_name() -> None:
    many = [AttemptId(uuid.UUID(int=number)) for number in range(1, 301)]
    sealed = StagingState().sealing(many).sealed()
    with pytest.raises(SealRefused, match=f"{THREE} and 297 more") as caught:
        sealed.sealing([ONE])
    assert len(caught.value.message) < 300


def test_attempts_are_bounded_and_may_go() -> None:
    state = StagingState().put(ONE, 1)
    with pytest.raises(Refused, match="attempts were made"):
        state.put(TWO, 1)
    assert state.without(ONE).put(TWO, 1).attempts == {TWO}

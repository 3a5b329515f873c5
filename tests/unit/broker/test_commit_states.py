"""The table of copy states: which answers each state accepts, and that each row changes what it says."""

import pytest
from tests.unit.topology.small_cluster import replica

from ebla.broker.commit_states import (
    TRANSITIONS,
    UNUSABLE_STATES,
    CommitProgress,
    CopyAnswer,
    CopyProgress,
    CopyState,
)
from ebla.broker.write_layout import ReplicaStack, collect_staged
from ebla.model.errors import Corruption, EblaError, Refused, Stale, Unreachable
from ebla.model.token import WHOLE_RING
from ebla.wire.transfer_messages import AdoptAnswer

STACK = ReplicaStack(replica(1, 0), WHOLE_RING)


def progress(state: CopyState) -> CommitProgress:
    return CommitProgress(staged=collect_staged((), ()), copies={STACK: CopyProgress(state=state)})


def test_every_state_is_reached_and_a_failed_call_never_changes_one() -> None:
    reached = {CopyState.MISSING, CopyState.STAGED, *TRANSITIONS.values()}
    assert reached == set(CopyState)
    assert all(TRANSITIONS[state, CopyAnswer.FAILED] is state for state in CopyState)


def test_a_copy_that_cannot_be_used_stays_so() -> None:
    for (state, _), following in TRANSITIONS.items():
        if state in UNUSABLE_STATES:
            assert following is state


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Corruption("other bytes"), CopyState.DAMAGED),
        (Refused("no such attempt"), CopyState.DAMAGED),
        (Stale("the session is closed"), CopyState.STAGED),
        (Unreachable("down"), CopyState.STAGED),
    ],
)
def test_a_seal_that_fails_is_damage_only_if_the_node_lacks_the_rows(error: EblaError, state: CopyState) -> None:
    found = progress(CopyState.STAGED)
    found.note_sealed((), {STACK: error})
    assert (found.of(STACK).state, found.of(STACK).error) == (state, error)


def test_refusals_count_only_while_there_is_no_newer_topology() -> None:
    found = progress(CopyState.SEALED)
    for is_newer in (False, True, False, False):
        found.note_adopted({}, {STACK: Stale("another incarnation")})
        found.note_topology(is_newer=is_newer, refusals_max=3)
        assert found.is_usable(STACK)
    found.note_adopted({}, {STACK: Stale("another incarnation")})
    found.note_topology(is_newer=False, refusals_max=3)
    assert found.of(STACK).state is CopyState.OUTDATED


def test_adopting_twice_counts_its_layers_once_and_its_rows_once() -> None:
    found = progress(CopyState.SEALED)
    found.note_adopted({STACK: AdoptAnswer(1, 5)}, {})
    found.note_adopted({STACK: AdoptAnswer(0, 5)}, {})
    assert found.totals() == AdoptAnswer(1, 5)
    assert (found.of(STACK).state, found.is_adopted(STACK)) == (CopyState.ADOPTED, True)

from collections.abc import Iterable

import pytest

from ebla.raft.held_appends import HELD_BYTES_MAX, LATE_HOLDS_MAX, ROUNDS_TO_RANK, HeldAppends
from ebla.raft.messages import Append, AppendResponse, Entry, Heartbeat, Membership, PeerId

ONE, TWO, THREE, FOUR, FIVE, SIX = (PeerId(number) for number in range(1, 7))
OF_THREE = Membership(voters=(ONE, TWO, THREE))
TERM = 7


def append(to: PeerId, indexes: Iterable[int], *, prev: int = 0, commit: int = 0, data: bytes = b"x") -> Append:
    entries = tuple(Entry(index=index, term=TERM, data=data) for index in indexes)
    prev = entries[0].index - 1 if entries else prev
    return Append(sender=ONE, to=to, term=TERM, prev_index=prev, prev_term=TERM, commit=commit, entries=entries)


def acknowledge(held: HeldAppends, sender: PeerId, index: int, membership: Membership = OF_THREE) -> None:
    held.acknowledged(AppendResponse(sender=sender, to=ONE, term=TERM, index=index), membership)


def has_ranking(held: HeldAppends) -> bool:
    """A call, so that no checker takes an earlier answer for a later one."""
    return held.has_ranking


def chosen(membership: Membership = OF_THREE, firsts: tuple[PeerId, ...] = (TWO,)) -> HeldAppends:
    """Of a leader that has seen who is quick."""
    held = HeldAppends(ONE)
    for index in range(1, ROUNDS_TO_RANK + 2):
        for peer in firsts:
            acknowledge(held, peer, index, membership)
    assert has_ranking(held)
    return held


def test_everybody_is_sent_everything_until_it_has_shown_who_is_quick() -> None:
    held = HeldAppends(ONE)
    for index in range(1, ROUNDS_TO_RANK):
        for peer in (TWO, THREE):
            assert not held.hold(peer, (append(peer, [index]),), index)
        acknowledge(held, ONE, index)
        acknowledge(held, TWO, index)
        acknowledge(held, THREE, index)
    assert not has_ranking(held)
    acknowledge(held, TWO, ROUNDS_TO_RANK)
    assert has_ranking(held)
    assert not held.hold(TWO, (append(TWO, [20]),), 20)
    assert held.hold(THREE, (append(THREE, [20]),), 20)


def test_what_is_held_leaves_as_one_append_with_the_newest_commit() -> None:
    held = chosen()
    assert held.hold(THREE, (append(THREE, [20, 21], commit=19),), 21)
    assert held.hold(THREE, (append(THREE, [22], commit=20),), 22)
    assert held.hold(THREE, (append(THREE, [], prev=22, commit=22),), 22)
    assert held.take_all(22) == [append(THREE, [20, 21, 22], commit=22)]
    assert held.is_empty
    assert held.take(THREE) is None


def test_as_many_as_a_majority_needs_are_never_held_and_learners_are() -> None:
    membership = Membership(voters=(ONE, TWO, THREE, FOUR, FIVE), learners=(SIX,))
    held = chosen(membership, (FIVE, THREE))
    at_once = [peer for peer in (TWO, THREE, FOUR, FIVE, SIX) if not held.hold(peer, (append(peer, [20]),), 20)]
    assert at_once == [THREE, FIVE]


def test_a_learner_that_is_first_shows_nothing() -> None:
    held = HeldAppends(ONE)
    membership = Membership(voters=(ONE, TWO, THREE), learners=(SIX,))
    for index in range(1, 2 * ROUNDS_TO_RANK):
        acknowledge(held, SIX, index, membership)
    assert not has_ranking(held)


def test_a_voter_that_never_acknowledges_is_not_chosen() -> None:
    """Four is always the first, two is dead, three and five come after: one of these is needed too."""
    membership = Membership(voters=(ONE, TWO, THREE, FOUR, FIVE))
    held = HeldAppends(ONE)
    for index in range(1, ROUNDS_TO_RANK + 2):
        acknowledge(held, FOUR, index, membership)
        acknowledge(held, FIVE, index, membership)
        acknowledge(held, THREE, index, membership)
    at_once = [peer for peer in (TWO, THREE, FOUR, FIVE) if not held.hold(peer, (append(peer, [99]),), 99)]
    assert at_once == [FOUR, FIVE]


def test_nobody_is_held_while_two_majorities_decide() -> None:
    held = HeldAppends(ONE)
    joint = Membership(voters=(ONE, TWO, THREE), outgoing=(ONE, TWO, FOUR))
    for index in range(1, 2 * ROUNDS_TO_RANK):
        acknowledge(held, TWO, index, joint)
    assert not has_ranking(held)


@pytest.mark.parametrize(
    "messages",
    [
        (append(THREE, [19]),),
        (append(THREE, [], prev=20),),
        (Heartbeat(sender=ONE, to=THREE, term=TERM),),
        (append(THREE, [20]), Heartbeat(sender=ONE, to=THREE, term=TERM)),
        (append(THREE, [20], data=bytes(HELD_BYTES_MAX + 1)),),
    ],
    ids=["behind the end", "empty", "no append", "more than one", "large"],
)
def test_these_are_never_held(messages: tuple[Append | Heartbeat, ...]) -> None:
    held = chosen()
    assert not held.hold(THREE, messages, 20)
    assert held.is_empty


def test_what_does_not_follow_is_not_put_together() -> None:
    held = chosen()
    assert held.hold(THREE, (append(THREE, [20]),), 20)
    assert not held.hold(THREE, (append(THREE, [22]),), 22)
    assert not held.hold(THREE, (append(THREE, [21], data=bytes(HELD_BYTES_MAX)),), 21)
    assert held.take(THREE) == append(THREE, [20])


def test_a_peer_that_became_slow_is_told_from_one_that_was_late_once() -> None:
    held = chosen()
    for index in range(20, 20 + LATE_HOLDS_MAX):
        held.hold(THREE, (append(THREE, [index]),), index)
        held.take_all(committed=index - 1)
    held.hold(THREE, (append(THREE, [30]),), 30)
    held.take_all(committed=30)
    assert has_ranking(held)
    for index in range(40, 41 + LATE_HOLDS_MAX):
        held.hold(THREE, (append(THREE, [index]),), index)
        held.take_all(committed=index - 1)
    assert not has_ranking(held)
    for index in range(100, 100 + ROUNDS_TO_RANK):
        acknowledge(held, THREE, index)
    assert not held.hold(THREE, (append(THREE, [200]),), 200)
    assert held.hold(TWO, (append(TWO, [200]),), 200)


def test_another_leadership_begins_with_nothing() -> None:
    held = chosen()
    held.hold(THREE, (append(THREE, [20]),), 20)
    held.forget()
    assert held.is_empty
    assert not has_ranking(held)
    acknowledge(held, TWO, 1)
    assert not has_ranking(held)

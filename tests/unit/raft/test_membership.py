"""Changes of a membership, and what they refuse."""

import pytest

from ebla.raft.membership import (
    LEAVE_JOINT,
    MemberChange,
    MemberChangeKind,
    MembershipChange,
    MembershipRefused,
    MembershipRule,
    Transition,
    apply_change,
    change_of,
    decode_change,
    encode_change,
)
from ebla.raft.messages import Entry, EntryKind, Membership, PeerId

ONE, TWO, THREE, FOUR = (PeerId(number) for number in range(1, 5))
BASE = Membership(voters=(ONE, TWO, THREE))


def _change(*changes: tuple[MemberChangeKind, PeerId], transition: Transition = Transition.AUTO) -> MembershipChange:
    return MembershipChange(tuple(MemberChange(kind, peer) for kind, peer in changes), transition)


def test_one_voter_goes_in_one_step() -> None:
    after = apply_change(BASE, _change((MemberChangeKind.REMOVE, THREE)))
    assert after == Membership(voters=(ONE, TWO))


def test_two_voters_go_through_a_joint_phase_that_ends_by_itself() -> None:
    joint = apply_change(BASE, _change((MemberChangeKind.REMOVE, THREE), (MemberChangeKind.ADD_VOTER, FOUR)))
    assert joint == Membership(voters=(ONE, TWO, FOUR), outgoing=(ONE, TWO, THREE), auto_leave=True)
    assert apply_change(joint, LEAVE_JOINT) == Membership(voters=(ONE, TWO, FOUR))


def test_an_explicit_joint_phase_waits() -> None:
    joint = apply_change(BASE, _change((MemberChangeKind.ADD_VOTER, FOUR), transition=Transition.JOINT_EXPLICIT))
    assert joint.is_joint
    assert not joint.auto_leave


def test_a_demoted_voter_votes_until_the_joint_phase_ends() -> None:
    joint = apply_change(BASE, _change((MemberChangeKind.ADD_LEARNER, THREE), transition=Transition.JOINT_IMPLICIT))
    assert joint.is_voter(THREE)
    assert not joint.is_learner(THREE)
    assert joint.learners_next == (THREE,)
    assert apply_change(joint, LEAVE_JOINT) == Membership(voters=(ONE, TWO), learners=(THREE,))


def test_a_learner_is_promoted() -> None:
    learning = Membership(voters=(ONE,), learners=(TWO,))
    assert apply_change(learning, _change((MemberChangeKind.ADD_VOTER, TWO))) == Membership(voters=(ONE, TWO))


def test_an_update_changes_nothing() -> None:
    assert apply_change(BASE, _change((MemberChangeKind.UPDATE, TWO))) == BASE


@pytest.mark.parametrize(
    ("membership", "change", "rule"),
    [
        (BASE, LEAVE_JOINT, MembershipRule.NOT_JOINT),
        (Membership(voters=(ONE,)), _change((MemberChangeKind.REMOVE, ONE)), MembershipRule.LAST_VOTER),
        (
            Membership(voters=(ONE,), outgoing=(TWO,)),
            _change((MemberChangeKind.ADD_VOTER, THREE)),
            MembershipRule.JOINT_IN_THE_WAY,
        ),
        (
            Membership(voters=(ONE,), outgoing=(TWO,)),
            _change((MemberChangeKind.ADD_VOTER, THREE), (MemberChangeKind.ADD_VOTER, FOUR)),
            MembershipRule.ALREADY_JOINT,
        ),
        (
            Membership(),
            _change((MemberChangeKind.ADD_VOTER, THREE), (MemberChangeKind.ADD_VOTER, FOUR)),
            MembershipRule.NO_VOTERS_TO_JOIN,
        ),
    ],
)
def test_refused(membership: Membership, change: MembershipChange, rule: MembershipRule) -> None:
    with pytest.raises(MembershipRefused) as refused:
        apply_change(membership, change)
    assert refused.value.rule is rule


def test_encoding_there_and_back() -> None:
    change = MembershipChange((MemberChange(MemberChangeKind.ADD_LEARNER, TWO),), Transition.JOINT_EXPLICIT, b"lock")
    assert decode_change(encode_change(change)) == change


def test_leaving_takes_no_bytes() -> None:
    assert encode_change(LEAVE_JOINT) == b""
    assert change_of(Entry(index=5, term=1, data=b"", kind=EntryKind.MEMBERS)) == LEAVE_JOINT

"""Quorum arithmetic against a naive version that tries every subset."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ebla.raft.messages import MAX_INDEX, Membership, PeerId
from ebla.raft.quorum import VoteResult, joint_index, joint_vote, majority_index, majority_vote

peers = st.integers(1, 7).map(PeerId)
voter_sets = st.sets(peers, max_size=6).map(lambda found: tuple(sorted(found)))
indexes = st.dictionaries(peers, st.integers(0, 9))
votes = st.dictionaries(peers, st.booleans())


def _majorities(voters: tuple[PeerId, ...]) -> list[tuple[PeerId, ...]]:
    return [
        chosen for size in range(len(voters) + 1) for chosen in combinations(voters, size) if 2 * size > len(voters)
    ]


def naive_index(sides: list[tuple[PeerId, ...]], acknowledged: dict[PeerId, int]) -> int:
    """The highest index for which every side has some majority that holds it."""
    asked = [side for side in sides if side]
    if not asked:
        return MAX_INDEX
    return max(
        index
        for index in range(10)
        if all(
            any(all(acknowledged.get(peer, 0) >= index for peer in chosen) for chosen in _majorities(side))
            for side in asked
        )
    )


def naive_vote(sides: list[tuple[PeerId, ...]], given_votes: dict[PeerId, bool]) -> VoteResult:
    """Won if some majority of every side agreed; lost if one side has no majority left that could."""
    asked = [side for side in sides if side]
    if all(any(all(given_votes.get(peer) is True for peer in m) for m in _majorities(side)) for side in asked):
        return VoteResult.WON
    if all(any(all(given_votes.get(peer, True) for peer in m) for m in _majorities(side)) for side in asked):
        return VoteResult.PENDING
    return VoteResult.LOST


@given(voter_sets, indexes)
def test_majority_index(voters: tuple[PeerId, ...], acknowledged: dict[PeerId, int]) -> None:
    assert majority_index(voters, acknowledged) == naive_index([voters], acknowledged)


@given(voter_sets, voter_sets, indexes)
def test_joint_index(
    incoming: tuple[PeerId, ...], outgoing: tuple[PeerId, ...], acknowledged: dict[PeerId, int]
) -> None:
    membership = Membership(voters=incoming, outgoing=outgoing)
    assert joint_index(membership, acknowledged) == naive_index([incoming, outgoing], acknowledged)


@given(voter_sets, votes)
def test_majority_vote(voters: tuple[PeerId, ...], given_votes: dict[PeerId, bool]) -> None:
    assert majority_vote(voters, given_votes) is naive_vote([voters], given_votes)


@given(voter_sets, voter_sets, votes)
def test_joint_vote(
    incoming: tuple[PeerId, ...], outgoing: tuple[PeerId, ...], given_votes: dict[PeerId, bool]
) -> None:
    membership = Membership(voters=incoming, outgoing=outgoing)
    assert joint_vote(membership, given_votes) is naive_vote([incoming, outgoing], given_votes)


@given(voter_sets.filter(bool), voter_sets, indexes, votes)
def test_any_two_quorums_meet(
    incoming: tuple[PeerId, ...],
    outgoing: tuple[PeerId, ...],
    acknowledged: dict[PeerId, int],
    given_votes: dict[PeerId, bool],
) -> None:
    """The winner of an election has a vote from a peer that holds everything committed."""
    membership = Membership(voters=incoming, outgoing=outgoing)
    committed = joint_index(membership, acknowledged)
    if committed and joint_vote(membership, given_votes) is VoteResult.WON:
        assert any(acknowledged.get(peer, 0) >= committed for peer, granted in given_votes.items() if granted)

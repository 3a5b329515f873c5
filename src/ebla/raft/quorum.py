"""Quorums, simple and joint: what a set of acknowledgements or votes decides."""

import enum
from collections.abc import Mapping, Sequence

from ebla.raft.messages import MAX_INDEX, Membership, PeerId


class VoteResult(enum.Enum):
    PENDING = enum.auto()
    LOST = enum.auto()
    WON = enum.auto()


def majority(voters: Sequence[PeerId]) -> int:
    return len(voters) // 2 + 1


def majority_index(voters: Sequence[PeerId], acknowledged: Mapping[PeerId, int]) -> int:
    """The highest index that a majority has acknowledged. Without voters: `MAX_INDEX`."""
    if not voters:
        return MAX_INDEX
    indexes = sorted([acknowledged.get(voter, 0) for voter in voters])
    return indexes[len(indexes) - majority(voters)]


def joint_index(membership: Membership, acknowledged: Mapping[PeerId, int]) -> int:
    """While joint, an index counts only once both majorities have it."""
    index = majority_index(membership.voters, acknowledged)
    if membership.outgoing:
        return min(index, majority_index(membership.outgoing, acknowledged))
    return index


def majority_vote(voters: Sequence[PeerId], votes: Mapping[PeerId, bool]) -> VoteResult:
    """An election without voters is won."""
    if not voters:
        return VoteResult.WON
    needed = majority(voters)
    assert 2 * needed > len(voters), "two majorities overlap"
    answers = [votes.get(voter) for voter in voters]
    granted = answers.count(True)
    if granted >= needed:
        return VoteResult.WON
    return VoteResult.PENDING if granted + answers.count(None) >= needed else VoteResult.LOST


def joint_vote(membership: Membership, votes: Mapping[PeerId, bool]) -> VoteResult:
    """Won if both majorities are, lost if either is."""
    incoming = majority_vote(membership.voters, votes)
    if not membership.outgoing:
        return incoming
    outgoing = majority_vote(membership.outgoing, votes)
    if incoming is outgoing:
        return incoming
    if VoteResult.LOST in (incoming, outgoing):
        return VoteResult.LOST
    return VoteResult.PENDING

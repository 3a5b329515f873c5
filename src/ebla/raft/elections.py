"""Campaigns, votes, and messages of another term."""

from collections.abc import Callable, Mapping

from ebla.raft.leader import append_as_leader
from ebla.raft.messages import (
    NO_PEER,
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from ebla.raft.quorum import VoteResult, joint_vote
from ebla.raft.roles import Candidate, Follower, Leader, PreCandidate
from ebla.raft.state import RaftState

EARLY_CAMPAIGN_TICKS = 3


def start_election(state: RaftState, *, is_transfer: bool = False) -> None:
    """Campaigns, if this peer could become leader."""
    if isinstance(state.role, Leader) or not state.is_promotable:
        return
    # A change that is committed but not applied may have removed this peer or changed the voters.
    if state.log.has_membership_change(state.log.applied + 1, state.log.committed):
        return
    # In a leadership transfer the leader vouches for this peer: a pre-vote would only cost a round trip.
    if state.options.pre_vote and not is_transfer:
        _pre_vote(state)
    else:
        _campaign(state, transfer=is_transfer)


def _pre_vote(state: RaftState) -> None:
    state.become_pre_candidate()
    term, log = state.term + 1, state.log
    for peer in state.membership.all_voters():
        if peer == state.peer:
            state.respond_when_durable(PreVoteResponse(sender=peer, to=peer, term=term, granted=True))
        else:
            state.messages.append(
                PreVoteRequest(
                    sender=state.peer, to=peer, term=term, last_index=log.last_index, last_term=log.last_term
                )
            )


def _campaign(state: RaftState, *, transfer: bool) -> None:
    state.become_candidate()
    term, log = state.term, state.log
    for peer in state.membership.all_voters():
        if peer == state.peer:
            # Our own vote counts once it is durable, like that of any peer.
            state.respond_when_durable(VoteResponse(sender=peer, to=peer, term=term, granted=True))
        else:
            state.messages.append(
                VoteRequest(
                    sender=state.peer,
                    to=peer,
                    term=term,
                    last_index=log.last_index,
                    last_term=log.last_term,
                    transfer=transfer,
                )
            )


def on_vote_response(state: RaftState, answer: VoteResponse) -> None:
    """The votes of others may be enough before our own is durable. To become leader then would be wrong:

    1. A requests votes in term 2; all others grant. A appends x and replicates it to B.
    2. A crashes before term 2 reached its disk, and restarts in term 1.
    3. A requests votes in term 2 again, and C and D repeat theirs. A leads term 2 a second time and appends y where B
       holds x, with the same index and term.
    """
    role = state.role
    assert isinstance(role, Candidate)
    if _is_won(state, role, answer) and state.peer in role.votes:
        state.become_leader()
        assert isinstance(state.role, Leader)
        # An entry of the new term: before it is committed, no older entry can be, and no read can be answered.
        append_as_leader(state, state.role, [Entry(index=state.log.last_index + 1, term=state.term)])


def on_pre_vote_response(state: RaftState, answer: PreVoteResponse) -> None:
    role = state.role
    assert isinstance(role, PreCandidate)
    if _is_won(state, role, answer):
        _campaign(state, transfer=False)


def _is_won(state: RaftState, role: Candidate | PreCandidate, answer: VoteResponse | PreVoteResponse) -> bool:
    """Counts the vote. A campaign that is lost ends here."""
    role.votes.setdefault(answer.sender, answer.granted)
    result = joint_vote(state.membership, role.votes)
    if result is VoteResult.LOST:
        state.become_follower(state.term, NO_PEER)
    return result is VoteResult.WON


def on_vote_request(state: RaftState, request: VoteRequest) -> None:
    """One vote per term (INV-RAFT-1), for a candidate that holds every entry that may be committed (INV-RAFT-3)."""
    is_free = state.vote == request.sender or (state.vote == NO_PEER and state.role.leader == NO_PEER)
    granted = is_free and state.log.is_up_to_date(request.last_index, request.last_term)
    state.respond_when_durable(VoteResponse(sender=state.peer, to=request.sender, term=state.term, granted=granted))
    if granted:
        state.vote = request.sender
        state.election_elapsed = 0


def on_pre_vote_request(state: RaftState, request: PreVoteRequest) -> None:
    """A pre-vote promises nothing, so any number may be granted. A grant carries the requested term; with our own, the
    sender, which is not in that term yet, would take the answer for an old one."""
    is_free = (
        request.term > state.term
        or state.vote == request.sender
        or (state.vote == NO_PEER and state.role.leader == NO_PEER)
    )
    granted = is_free and state.log.is_up_to_date(request.last_index, request.last_term)
    term = request.term if granted else state.term
    state.respond_when_durable(PreVoteResponse(sender=state.peer, to=request.sender, term=term, granted=granted))
    if is_free and not granted and state.options.campaign_early_when_ahead and type(state.role) is Follower:
        # Random, since several peers may be ahead of the candidate.
        soon = state.election_timeout - state.rng.randrange(1, EARLY_CAMPAIGN_TICKS + 1)
        state.election_elapsed = max(state.election_elapsed, soon)


# Messages of another term.


def trusts_leader(state: RaftState) -> bool:
    """The leader was alive within the election timeout, so a campaign now would only disturb."""
    return (
        state.options.check_quorum
        and state.role.leader != NO_PEER
        and state.election_elapsed < state.options.election_ticks
    )


def enter_newer_term(state: RaftState, message: Message, term: int) -> bool:
    """A message of a later term. True if it is to be processed."""
    match message:
        case VoteRequest():
            if trusts_leader(state) and not message.transfer:
                return False
            state.become_follower(term, NO_PEER)
        case PreVoteRequest():
            # Our term stays: a pre-vote must not disturb anyone.
            return not trusts_leader(state)
        case PreVoteResponse(granted=True):
            pass
        case Append() | Heartbeat() | InstallSnapshot():
            state.become_follower(term, message.sender)
        case _:
            state.become_follower(term, NO_PEER)
    return True


def _refuse_old_leader(state: RaftState, message: Append | Heartbeat) -> None:
    """With check-quorum or pre-vote our higher term may have reached no other peer: a candidate that was partitioned
    comes back, ignores the leader's messages as old, and its own requests are ignored. The term of this answer makes
    the leader step down."""
    if state.options.check_quorum or state.options.pre_vote:
        state.respond_when_durable(AppendResponse(sender=state.peer, to=message.sender, term=state.term))


def _refuse_old_pre_vote(state: RaftState, request: PreVoteRequest) -> None:
    """Answers with our term, or a cluster whose highest term has the shorter log would never elect a leader."""
    state.respond_when_durable(PreVoteResponse(sender=state.peer, to=request.sender, term=state.term, granted=False))


_Refuse = Callable[[RaftState, Message], None]

REFUSE_OLDER: Mapping[type[Message], _Refuse] = {
    Append: _refuse_old_leader,  # type: ignore[dict-item]  # keyed by the type it takes
    Heartbeat: _refuse_old_leader,  # type: ignore[dict-item]  # keyed by the type it takes
    PreVoteRequest: _refuse_old_pre_vote,  # type: ignore[dict-item]  # keyed by the type it takes
}

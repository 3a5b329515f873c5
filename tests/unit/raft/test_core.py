"""Single cores, message by message: what transcripts cannot say because no correct peer would send it."""

import pytest
from tests.scenarios.raft_harness.node import LongestTimeout

from ebla.raft.core import RaftCore
from ebla.raft.elections import EARLY_CAMPAIGN_TICKS
from ebla.raft.events import ApplyMembership, Campaign, PeerReachable, PeerUnreachable, Propose, ReadIndex, Tick
from ebla.raft.membership import LEAVE_JOINT, MemberChange, MemberChangeKind, MembershipChange, Transition
from ebla.raft.messages import (
    NO_PEER,
    Append,
    AppendResponse,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Membership,
    Message,
    PeerId,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotMeta,
    VoteRequest,
    VoteResponse,
)
from ebla.raft.options import RaftOptions, ReadIndexMode
from ebla.raft.roles import Candidate, Follower, Leader
from ebla.raft.state import Contradiction, RecoveredState, StepRefusal

ONE, TWO, THREE = (PeerId(number) for number in (1, 2, 3))
TRIO = Membership(voters=(ONE, TWO, THREE))


def _core(past: RecoveredState | None = None, options: RaftOptions | None = None) -> RaftCore:
    options = options or RaftOptions(peer=ONE, pre_vote=False, check_quorum=False)
    return RaftCore(
        options, past or RecoveredState(HardState(1, NO_PEER, 10), SnapshotMeta(10, 1, TRIO)), LongestTimeout(), 0
    )


def _finish(core: RaftCore) -> list[Message]:
    """Everything it asks for happens at once; what leaves it comes back."""
    sent: list[Message] = []
    while core.has_effects:
        effects = core.take()
        sent += effects.messages
        for answer in effects.write.answers if effects.write is not None else ():
            if answer.to == core.peer:
                core.step(answer, 0)
            else:
                assert not isinstance(answer, InstallSnapshot)
                sent.append(answer)  # type: ignore[arg-type]  # only `Written` is no message, and goes to ourselves
        if effects.apply is not None:
            core.step(effects.apply.answer, 0)
    return sent


def _leader() -> RaftCore:
    core = _core()
    core.step(Campaign(), 0)
    _finish(core)
    core.step(VoteResponse(sender=TWO, to=ONE, term=2, granted=True), 0)
    assert isinstance(core.role, Leader)
    return core


def test_a_commit_index_says_nothing_about_a_suffix_of_our_own() -> None:
    """Only we have entries 12 and 13; the leader's empty append fits at 11 and says that 13 is committed."""
    own = (Entry(index=11, term=1), Entry(index=12, term=1), Entry(index=13, term=1))
    core = _core(RecoveredState(HardState(2, NO_PEER, 10), SnapshotMeta(10, 1, TRIO), own))
    core.step(Append(sender=TWO, to=ONE, term=2, prev_index=11, prev_term=1, commit=13), 0)
    assert core.commit_index == 11


def test_an_append_from_before_the_commit_index_is_acknowledged_up_to_there() -> None:
    core = _core()
    core.step(
        Append(sender=TWO, to=ONE, term=1, prev_index=5, prev_term=1, commit=10, entries=(Entry(index=6, term=1),)), 0
    )
    assert _finish(core) == [AppendResponse(sender=ONE, to=TWO, term=1, index=10)]
    assert core.last_index == 10


@pytest.mark.parametrize(
    ("message", "index"),
    [
        (Heartbeat(sender=TWO, to=ONE, term=2, commit=14), 14),
        # It ends at the commit index with another term, replaces an entry below it, or continues another log.
        (Append(sender=TWO, to=ONE, term=2, prev_index=12, prev_term=2, commit=12), 12),
        (
            Append(
                sender=TWO,
                to=ONE,
                term=2,
                prev_index=11,
                prev_term=1,
                commit=12,
                entries=(Entry(index=12, term=2), Entry(index=13, term=2)),
            ),
            12,
        ),
        (Append(sender=TWO, to=ONE, term=2, prev_index=11, prev_term=2, commit=11), 11),
    ],
)
def test_a_message_that_contradicts_what_is_committed_here_is_an_outcome(message: Message, index: int) -> None:
    own = (Entry(index=11, term=1), Entry(index=12, term=1), Entry(index=13, term=1))
    core = _core(RecoveredState(HardState(2, NO_PEER, 12), SnapshotMeta(10, 1, TRIO), own))
    outcome = core.step(message, 0)
    assert isinstance(outcome, Contradiction)
    own_index = 13 if isinstance(message, Heartbeat) else 12
    assert (outcome.leader, outcome.index, outcome.own_index) == (TWO, index, own_index)
    assert str(index) in str(outcome)
    assert str(own_index) in str(outcome)
    assert (core.commit_index, core.last_index) == (12, 13)
    assert _finish(core) == [], "it is not answered"


def test_a_vote_is_kept_for_the_term() -> None:
    core = _core()
    core.step(VoteRequest(sender=TWO, to=ONE, term=2, last_index=10, last_term=1), 0)
    core.step(VoteRequest(sender=THREE, to=ONE, term=2, last_index=10, last_term=1), 0)
    core.step(VoteRequest(sender=TWO, to=ONE, term=2, last_index=10, last_term=1), 0)
    assert _finish(core) == [
        VoteResponse(sender=ONE, to=TWO, term=2, granted=True),
        VoteResponse(sender=ONE, to=THREE, term=2, granted=False),
        VoteResponse(sender=ONE, to=TWO, term=2, granted=True),
    ]


@pytest.mark.parametrize(("last_index", "last_term", "granted"), [(9, 1, False), (10, 1, True), (3, 2, True)])
def test_the_longer_log_of_the_later_term_wins(last_index: int, last_term: int, granted: bool) -> None:
    core = _core()
    core.step(VoteRequest(sender=TWO, to=ONE, term=3, last_index=last_index, last_term=last_term), 0)
    assert _finish(core) == [VoteResponse(sender=ONE, to=TWO, term=3, granted=granted)]


def test_a_restart_keeps_the_vote() -> None:
    core = _core(RecoveredState(HardState(2, TWO, 10), SnapshotMeta(10, 1, TRIO)))
    core.step(VoteRequest(sender=THREE, to=ONE, term=2, last_index=10, last_term=1), 0)
    assert _finish(core) == [VoteResponse(sender=ONE, to=THREE, term=2, granted=False)]


def test_a_restart_with_a_torn_write_learns_the_commit_index_again() -> None:
    core = _core(RecoveredState(HardState(1, NO_PEER, 99), SnapshotMeta(10, 1, TRIO), (Entry(index=11, term=1),)))
    assert core.commit_index == 11


def test_a_restart_between_snapshot_and_hard_state_is_in_the_snapshots_term() -> None:
    core = _core(RecoveredState(HardState(3, TWO, 5), SnapshotMeta(10, 5, TRIO)))
    assert core.term == 5
    core.step(VoteRequest(sender=THREE, to=ONE, term=5, last_index=10, last_term=5), 0)
    assert _finish(core) == [VoteResponse(sender=ONE, to=THREE, term=5, granted=True)]


def test_answers_of_strangers_are_refused() -> None:
    core = _leader()
    assert core.step(AppendResponse(sender=PeerId(9), to=ONE, term=2, index=11), 0) is StepRefusal.UNKNOWN_PEER
    assert core.step(HeartbeatResponse(sender=PeerId(9), to=ONE, term=7), 0) is StepRefusal.UNKNOWN_PEER
    assert core.term == 2


def test_a_pre_vote_moves_no_term() -> None:
    core = _core()
    core.step(PreVoteRequest(sender=TWO, to=ONE, term=50, last_index=10, last_term=1), 0)
    assert core.term == 1


def test_proposals_become_one_batch() -> None:
    core = _leader()
    _finish(core)
    assert core.step(Propose((b"a", b"b", b"c")), 0) is None
    effects = core.take()
    assert effects.write is not None
    assert [entry.data for entry in effects.write.entries] == [b"a", b"b", b"c"]
    assert core.last_index == 14


def test_too_many_reads_are_refused() -> None:
    options = RaftOptions(peer=ONE, pre_vote=False, check_quorum=False, waiting_reads_max=2)
    core = _core(options=options)
    core.step(Campaign(), 0)
    _finish(core)
    core.step(VoteResponse(sender=TWO, to=ONE, term=2, granted=True), 0)
    assert core.step(ReadIndex(b"1"), 0) is None
    assert core.step(ReadIndex(b"2"), 0) is None
    assert core.step(ReadIndex(b"3"), 0) is StepRefusal.TOO_MANY_READS


def test_a_snapshot_may_be_older_than_our_membership() -> None:
    core = _core(RecoveredState())
    snapshot = SnapshotMeta(20, 2, Membership(voters=(TWO, THREE)))
    core.step(InstallSnapshot(sender=TWO, to=ONE, term=2, snapshot=snapshot), 0)
    assert _finish(core) == [AppendResponse(sender=ONE, to=TWO, term=2, index=20)]
    assert core.membership == snapshot.membership


def test_a_snapshot_overtakes_a_change_that_is_still_being_applied() -> None:
    core = _core()
    joint = Membership(voters=(ONE, TWO), outgoing=(ONE, TWO, THREE))
    core.step(InstallSnapshot(sender=TWO, to=ONE, term=2, snapshot=SnapshotMeta(20, 2, joint)), 0)
    removal = MembershipChange((MemberChange(MemberChangeKind.REMOVE, THREE),), Transition.JOINT_EXPLICIT)
    core.step(ApplyMembership(15, removal), 0)
    assert core.membership == joint
    core.step(ApplyMembership(21, LEAVE_JOINT), 0)
    assert core.membership == Membership(voters=(ONE, TWO))


def test_after_a_long_pause_a_follower_waits_for_one_more_tick() -> None:
    """Its timeout is long over, but the leader's messages may be waiting to be read."""
    options = RaftOptions(peer=ONE, pre_vote=False, check_quorum=False, election_ticks=10, tick_ms=100)
    core = _core(options=options)
    core.step(Tick(), 3_600_000)
    assert isinstance(core.role, Follower)
    core.step(Heartbeat(sender=TWO, to=ONE, term=1), 3_600_000)
    core.step(Tick(), 3_600_900)
    assert isinstance(core.role, Follower)


def test_parts_of_ticks_add_up() -> None:
    options = RaftOptions(peer=ONE, pre_vote=False, check_quorum=False, election_ticks=10, tick_ms=100)
    core = _core(options=options)
    for now_ms in range(50, 1_900, 50):
        core.step(Tick(), now_ms)
    assert core.state.election_elapsed == 18
    assert core.term == 1
    core.step(Tick(), 1_900)
    assert core.term == 2
    assert isinstance(core.role, Candidate)


def test_time_does_not_go_back() -> None:
    core = _core()
    core.step(Tick(), 500)
    with pytest.raises(AssertionError, match="clock"):
        core.step(Tick(), 499)


def test_leases_need_a_checked_quorum() -> None:
    with pytest.raises(AssertionError, match="lease"):
        RaftOptions(peer=ONE, read_mode=ReadIndexMode.LEASE, check_quorum=False)


def test_a_probe_into_the_void_is_sent_again_as_soon_as_the_way_is_open() -> None:
    core = _leader()
    first = [message for message in _finish(core) if isinstance(message, Append)]
    assert sorted(message.to for message in first) == [TWO, THREE]
    core.step(PeerReachable(THREE), 0)
    assert _finish(core) == [message for message in first if message.to == THREE]
    core.step(PeerReachable(PeerId(9)), 0)
    core.step(PeerReachable(ONE), 0)
    assert _finish(core) == []


def test_a_peer_that_follows_is_sent_nothing_twice_when_it_comes_again() -> None:
    core = _leader()
    _finish(core)
    core.step(AppendResponse(sender=TWO, to=ONE, term=2, index=core.last_index), 0)
    _finish(core)
    core.step(Propose((b"x",)), 0)
    _finish(core)
    core.step(PeerReachable(TWO), 0)
    assert _finish(core) == []
    core.step(PeerUnreachable(TWO), 0)
    core.step(PeerReachable(TWO), 0)
    assert [message.to for message in _finish(core)] == [TWO]


def _sent(core: RaftCore) -> list[object]:
    """What leaves it, with nothing done about it: no entry is written here, and time may have passed."""
    effects = core.take()
    answers = () if effects.write is None else effects.write.answers
    return [*effects.messages, *answers]


@pytest.mark.parametrize(("is_soon", "ticks_max"), [(True, EARLY_CAMPAIGN_TICKS), (False, 20)])
def test_a_follower_that_refuses_who_is_behind_may_stand_soon(is_soon: bool, ticks_max: int) -> None:
    options = RaftOptions(peer=ONE, election_ticks=10, campaign_early_when_ahead=is_soon)
    core = _core(options=options)
    core.step(Heartbeat(sender=TWO, to=ONE, term=1), 0)
    for tick in range(1, 11):
        core.step(Tick(), tick * options.tick_ms)
    assert _sent(core) == [HeartbeatResponse(sender=ONE, to=TWO, term=1)]
    core.step(PreVoteRequest(sender=THREE, to=ONE, term=2, last_index=9, last_term=1), 10 * options.tick_ms)
    assert _sent(core) == [PreVoteResponse(sender=ONE, to=THREE, term=1, granted=False)]
    ticks = 0
    while not any(isinstance(message, PreVoteRequest) for message in _sent(core)):
        ticks += 1
        core.step(Tick(), (10 + ticks) * options.tick_ms)
    assert ticks <= ticks_max
    assert is_soon or ticks > EARLY_CAMPAIGN_TICKS


def test_a_follower_of_a_live_leader_stands_no_sooner_for_whoever_asks() -> None:
    options = RaftOptions(peer=ONE, election_ticks=10, campaign_early_when_ahead=True)
    core = _core(options=options)
    core.step(Heartbeat(sender=TWO, to=ONE, term=1), 0)
    core.step(PreVoteRequest(sender=THREE, to=ONE, term=2, last_index=9, last_term=1), 0)
    for tick in range(1, EARLY_CAMPAIGN_TICKS + 2):
        core.step(Tick(), tick * options.tick_ms)
    assert _sent(core) == [HeartbeatResponse(sender=ONE, to=TWO, term=1)]

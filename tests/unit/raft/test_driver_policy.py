"""The driver's decisions, one table or sequence of facts at a time."""

import itertools
from collections.abc import Iterable, Sequence

import pytest

from ebla.raft.driver_policy import (
    APPENDS_PER_SEND_MAX,
    EFFECT_ORDER,
    HELD_BYTES_MAX,
    LATE_HOLDS_MAX,
    ROUNDS_TO_RANK,
    WAITING_MS,
    DriverPolicy,
    EffectsKind,
    PeerBatch,
    Step,
    Timer,
    batch_proposals,
)
from ebla.raft.events import Propose, SendCommit
from ebla.raft.messages import Append, AppendResponse, Entry, EntryKind, Heartbeat, Membership, Message, PeerId

ONE, TWO, THREE, FOUR, FIVE, SIX = (PeerId(number) for number in range(1, 7))
OF_THREE = Membership(voters=(ONE, TWO, THREE))
OF_FIVE = Membership(voters=(ONE, TWO, THREE, FOUR, FIVE))
TERM = 7
COMMAND, MEMBER = EntryKind.COMMAND, EntryKind.MEMBER


# ---- the order of effects


def test_the_order_is_total_and_every_effect_has_its_step() -> None:
    assert set(EFFECT_ORDER) == {EffectsKind(*flags) for flags in itertools.product((True, False), repeat=3)}
    for flags, steps in EFFECT_ORDER.items():
        kind = EffectsKind(*flags)
        assert len(set(steps)) == len(steps)
        assert Step.WRITE in steps
        assert Step.APPLY in steps or not kind.has_apply
        assert (Step.NOTIFY in steps) is kind.is_leader
        assert Step.SYNC not in steps or steps.index(Step.WRITE) < steps.index(Step.SYNC) < steps.index(Step.APPLY)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (EffectsKind(is_leader=True, needs_disk=True, has_apply=True), Step.WRITE),
        (EffectsKind(is_leader=True, needs_disk=False, has_apply=True), Step.APPLY),
        (EffectsKind(is_leader=False, needs_disk=True, has_apply=True), Step.WRITE),
        (EffectsKind(is_leader=False, needs_disk=False, has_apply=True), Step.WRITE),
    ],
)
def test_what_a_client_or_a_leader_waits_for_comes_first(kind: EffectsKind, first: Step) -> None:
    assert EFFECT_ORDER[kind][0] is first


# ---- turns and the disk


@pytest.mark.parametrize(
    ("last_crowd", "is_pipelined", "expected"),
    [(0, False, True), (1, False, True), (1, True, False), (2, False, False), (2, True, False)],
)
def test_a_lone_event_gets_a_turn_at_once(last_crowd: int, is_pipelined: bool, expected: bool) -> None:
    policy = DriverPolicy(ONE)
    list(policy.batch_proposals([(b"x", COMMAND)] * last_crowd, 100))
    assert policy.may_turn_now(is_pipelined=is_pipelined) is expected


@pytest.mark.parametrize(
    ("is_leader", "is_idle", "is_ranked", "expected"),
    [
        (False, True, False, True),
        (False, False, False, False),
        (True, True, False, False),
        (True, True, True, True),
        (True, False, True, False),
    ],
)
def test_the_loop_waits_for_a_sync_only_if_nothing_can_happen_meanwhile(
    is_leader: bool, is_idle: bool, is_ranked: bool, expected: bool
) -> None:
    policy = ranked() if is_ranked else DriverPolicy(ONE)
    assert policy.may_block_for_sync(is_leader=is_leader, is_idle=is_idle) is expected


@pytest.mark.parametrize(
    ("is_leader", "has_queued_writes", "expected"),
    [(True, True, False), (True, False, False), (False, True, True), (False, False, False)],
)
def test_a_follower_writes_before_it_applies(is_leader: bool, has_queued_writes: bool, expected: bool) -> None:
    policy = DriverPolicy(ONE)
    assert policy.defers_apply(is_leader=is_leader, has_queued_writes=has_queued_writes) is expected


def test_neighbours_share_an_event_up_to_the_size_of_a_message_and_a_change_gets_its_own() -> None:
    commands = [(bytes([number]) * 40, COMMAND) for number in range(6)]
    proposals = [*commands[:4], (b"a change", MEMBER), commands[4], (b"x" * 300, COMMAND), commands[5]]
    assert list(batch_proposals(proposals, 100)) == [
        Propose((commands[0][0], commands[1][0]), COMMAND),
        Propose((commands[2][0], commands[3][0]), COMMAND),
        Propose((b"a change",), MEMBER),
        Propose((commands[4][0],), COMMAND),
        Propose((b"x" * 300,), COMMAND),
        Propose((commands[5][0],), COMMAND),
    ]
    assert list(batch_proposals([], 100)) == []
    assert list(batch_proposals([(b"a change", MEMBER)], 100)) == [Propose((b"a change",), MEMBER)]


# ---- fast peers


def append(to: PeerId, indexes: Iterable[int], *, prev: int = 0, commit: int = 0, data: bytes = b"x") -> Append:
    entries = tuple(Entry(index=index, term=TERM, data=data) for index in indexes)
    prev = entries[0].index - 1 if entries else prev
    return Append(sender=ONE, to=to, term=TERM, prev_index=prev, prev_term=TERM, commit=commit, entries=entries)


def acknowledge(policy: DriverPolicy, sender: PeerId, index: int, membership: Membership = OF_THREE) -> None:
    policy.acknowledged(AppendResponse(sender=sender, to=ONE, term=TERM, index=index), membership)


def ranked(membership: Membership = OF_THREE, fast: tuple[PeerId, ...] = (TWO,)) -> DriverPolicy:
    policy = DriverPolicy(ONE)
    for index in range(1, ROUNDS_TO_RANK + 2):
        for peer in fast:
            acknowledge(policy, peer, index, membership)
    assert has_ranking(policy)
    return policy


def has_ranking(policy: DriverPolicy) -> bool:
    """A call, so that a type checker does not narrow the property between two checks."""
    return policy.has_ranking


def sends(policy: DriverPolicy, messages: Sequence[Message], last_index: int, now_ms: int = 0) -> list[Message]:
    return [one for batch in policy.to_send(messages, last_index, now_ms) for one in batch.messages]


def test_every_peer_gets_every_append_until_the_peers_are_ranked() -> None:
    policy = DriverPolicy(ONE)
    for index in range(1, ROUNDS_TO_RANK):
        appends = [append(peer, [index]) for peer in (TWO, THREE)]
        assert sends(policy, appends, index) == appends
        for peer in (ONE, TWO, THREE):
            acknowledge(policy, peer, index)
    assert not has_ranking(policy)
    acknowledge(policy, TWO, ROUNDS_TO_RANK)
    assert has_ranking(policy)
    assert sends(policy, [append(TWO, [20]), append(THREE, [20])], 20) == [append(TWO, [20])]
    assert policy.timers == [Timer.HELD_APPENDS]


def test_held_appends_are_sent_as_one_with_the_newest_commit_index() -> None:
    policy = ranked()
    assert sends(policy, [append(THREE, [20, 21], commit=19)], 21) == []
    assert sends(policy, [append(THREE, [22], commit=20)], 22) == []
    assert sends(policy, [append(THREE, [], prev=22, commit=22)], 22) == []
    assert policy.timers == [Timer.HELD_APPENDS]
    assert policy.held_due(22) == [PeerBatch(THREE, (append(THREE, [20, 21, 22], commit=22),))]
    assert policy.held_due(22) == []


def test_a_majority_is_never_held_and_learners_are() -> None:
    membership = Membership(voters=OF_FIVE.voters, learners=(SIX,))
    policy = ranked(membership, (FIVE, THREE))
    appends = [append(peer, [20]) for peer in (TWO, THREE, FOUR, FIVE, SIX)]
    assert [one.to for one in sends(policy, appends, 20)] == [THREE, FIVE]


def test_acknowledgements_of_a_learner_do_not_rank() -> None:
    policy = DriverPolicy(ONE)
    membership = Membership(voters=(ONE, TWO, THREE), learners=(SIX,))
    for index in range(1, 2 * ROUNDS_TO_RANK):
        acknowledge(policy, SIX, index, membership)
    assert not has_ranking(policy)


def test_a_voter_that_never_acknowledges_is_not_fast() -> None:
    """Four is always the first, two is dead, three and five come after: one of these is needed too."""
    policy = DriverPolicy(ONE)
    for index in range(1, ROUNDS_TO_RANK + 2):
        for peer in (FOUR, FIVE, THREE):
            acknowledge(policy, peer, index, OF_FIVE)
    appends = [append(peer, [99]) for peer in (TWO, THREE, FOUR, FIVE)]
    assert [one.to for one in sends(policy, appends, 99)] == [FOUR, FIVE]


def test_peers_are_not_ranked_in_a_joint_configuration() -> None:
    policy = DriverPolicy(ONE)
    joint = Membership(voters=(ONE, TWO, THREE), outgoing=(ONE, TWO, FOUR))
    for index in range(1, 2 * ROUNDS_TO_RANK):
        acknowledge(policy, TWO, index, joint)
    assert not has_ranking(policy)


@pytest.mark.parametrize(
    "messages",
    [
        [append(THREE, [19])],
        [append(THREE, [], prev=20)],
        [Heartbeat(sender=ONE, to=THREE, term=TERM)],
        [append(THREE, [20]), Heartbeat(sender=ONE, to=THREE, term=TERM)],
        [append(THREE, [20], data=bytes(HELD_BYTES_MAX + 1))],
    ],
    ids=["behind the end", "empty", "no append", "more than one", "large"],
)
def test_these_are_never_held(messages: list[Message]) -> None:
    policy = ranked()
    assert sends(policy, messages, 20) == messages
    assert policy.timers == []


def test_an_append_that_does_not_follow_the_held_one_is_sent_behind_it() -> None:
    for later in (append(THREE, [22]), append(THREE, [21], data=bytes(HELD_BYTES_MAX))):
        policy = ranked()
        assert sends(policy, [append(THREE, [20])], 20) == []
        assert sends(policy, [later], later.entries[-1].index) == [append(THREE, [20]), later]


def test_held_appends_are_sent_before_newer_ones_even_after_the_ranking_was_reset() -> None:
    policy = ranked()
    assert sends(policy, [append(THREE, [20])], 20) == []
    policy.reset_ranking()
    assert sends(policy, [append(THREE, [21])], 21) == [append(THREE, [20]), append(THREE, [21])]


def test_a_fast_peer_that_became_slow_resets_the_ranking_and_one_late_hold_does_not() -> None:
    policy = ranked()
    for index in range(20, 20 + LATE_HOLDS_MAX):
        assert sends(policy, [append(THREE, [index])], index) == []
        policy.held_due(commit_index=index - 1)
    sends(policy, [append(THREE, [30])], 30)
    policy.held_due(commit_index=30)
    assert has_ranking(policy)
    for index in range(40, 41 + LATE_HOLDS_MAX):
        sends(policy, [append(THREE, [index])], index)
        policy.held_due(commit_index=index - 1)
    assert not has_ranking(policy)
    for index in range(100, 100 + ROUNDS_TO_RANK):
        acknowledge(policy, THREE, index)
    assert sends(policy, [append(TWO, [200]), append(THREE, [200])], 200) == [append(THREE, [200])]


def test_a_new_leadership_starts_without_held_appends_and_ranking() -> None:
    policy = ranked()
    sends(policy, [append(THREE, [20])], 20)
    policy.status_changed()
    assert policy.held_due(20) == []
    assert not has_ranking(policy)
    acknowledge(policy, TWO, 1)
    assert not has_ranking(policy)


def test_nothing_is_held_back_from_a_peer_that_waits() -> None:
    policy = ranked()
    sends(policy, [append(THREE, [20])], 20, now_ms=1_000)
    policy.peer_waits(THREE, 1_000)
    sent = sends(policy, [append(THREE, [21])], 21, now_ms=1_000 + WAITING_MS - 1)
    assert sent == [append(THREE, [20]), append(THREE, [21])]
    assert sends(policy, [append(THREE, [22])], 22, now_ms=1_000 + WAITING_MS) == []


def test_no_batch_holds_more_messages_than_fit_a_frame() -> None:
    messages = [append(TWO, [index]) for index in range(2 * APPENDS_PER_SEND_MAX + 1)]
    batches = DriverPolicy(ONE).to_send(messages, 99, 0)
    assert [len(batch.messages) for batch in batches] == [APPENDS_PER_SEND_MAX, APPENDS_PER_SEND_MAX, 1]


# ---- commit notices


def never_sent(_index: int) -> bool:
    return False


def test_a_waiting_peer_is_notified_of_a_commit_at_once() -> None:
    policy = DriverPolicy(ONE)
    assert policy.committed(4, 0) == []
    policy.peer_waits(TWO, 1_000)
    policy.peer_waits(THREE, 1_050)
    assert policy.committed(5, 1_000 + WAITING_MS - 1) == [SendCommit(5, TWO), SendCommit(5, THREE)]
    assert policy.committed(6, 1_000 + WAITING_MS) == [SendCommit(6, THREE)]


def test_every_commit_is_announced_to_all_peers_after_a_delay() -> None:
    policy = DriverPolicy(ONE)
    for index in (4, 5, 6):
        policy.committed(index, 0)
    assert policy.timers == [Timer.COMMIT_NOTICE]
    policy.timers.clear()
    assert policy.notice_due(never_sent) == SendCommit(4)
    assert policy.timers == [Timer.COMMIT_NOTICE], "a later commit gets a delay of its own"
    policy.timers.clear()
    assert policy.notice_due(never_sent) == SendCommit(6)
    assert policy.timers == []
    policy.committed(7, 0)
    assert policy.timers == [Timer.COMMIT_NOTICE]


def test_a_commit_that_every_peer_was_sent_meanwhile_is_not_announced() -> None:
    policy = DriverPolicy(ONE)
    policy.committed(4, 0)
    policy.committed(6, 0)
    assert policy.notice_due(lambda index: index < 6) is None
    assert policy.notice_due(lambda index: index < 6) == SendCommit(6)

"""What a run refuses, what its errors say, and what becomes of an operation that can never be completed."""

import asyncio
import uuid
from dataclasses import replace
from typing import cast

import msgspec
import pytest
from tests.unit.control.operations.operation_rig import (
    JANITOR_DELAY_MS,
    NEWCOMER,
    Leader,
    OperationRig,
    add,
    change_roles,
    exclude,
    host,
    member,
    prepared,
    refresh,
    remove,
)

from ebla.control.group0.node import Group0Node
from ebla.control.operations import runner
from ebla.control.operations.hand_over import successors
from ebla.group0.members import MemberRole
from ebla.group0.operation_steps import ENDED_MAX
from ebla.group0.operation_table import OPERATIONS, OperationPlan, Refusal
from ebla.group0.operations import (
    ENDED_OPERATION_PREFIX,
    UNFINISHED_FAILOVER_KEY,
    UNFINISHED_OPERATION_KEY,
    Operation,
    OperationCode,
    OperationFailed,
    OperationKind,
    OperationResult,
    OperationState,
    UnfinishedOperation,
    ended_operations,
    read_state,
)
from ebla.model.errors import DeadlineExceeded, Outcome, Refused, Unavailable
from ebla.model.identity import Address, RequestId, TableId, TopologyVersion
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import DeleteKey, PutKey, Transaction
from ebla.sim.checkers.operations import settled_problem
from ebla.topology.commands import (
    AbortRequest,
    CompleteRequest,
    CreateKeyspace,
    CreateTable,
    RemoveNodeWithoutData,
    RollBackNode,
)
from ebla.topology.snapshot import Keyspace, Replication, Table
from ebla.topology.states import NodeState, Strategy, TransitionState


async def failed(leader: Leader, operation: Operation) -> OperationFailed:
    with pytest.raises(OperationFailed) as caught:
        await leader.runner.run(operation)
    return caught.value


def put_record(rig: OperationRig, record: UnfinishedOperation) -> None:
    """As a run left it, under the newest lock."""
    lock = rig.machine.store.lock
    assert lock is not None
    put = PutKey(UNFINISHED_OPERATION_KEY, encode_stored(StoredValue(msgspec.structs.replace(record, lock=lock))))
    rig.apply(Transaction((), (put,)))


def newcomer(**fields: object) -> Operation:
    return msgspec.structs.replace(add(NEWCOMER), member=member(NEWCOMER, MemberRole.LEARNER, **fields))


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        (remove(9), OperationCode.INVALID, "is not a member"),
        (change_roles({9: MemberRole.VOTER}), OperationCode.INVALID, "is not a member"),
        (change_roles(dict.fromkeys((1, 2, 3), MemberRole.LEARNER)), OperationCode.INVALID, "without a voter"),
        (newcomer(address=Address("h", 2)), OperationCode.INVALID, "is the address of"),
        (newcomer(features=()), OperationCode.INVALID, "lacks"),
        (add(9), OperationCode.INVALID, "has not requested to join"),
        (msgspec.structs.replace(add(NEWCOMER), id=uuid.UUID(int=5)), OperationCode.INVALID, "has no join request"),
        (
            msgspec.structs.replace(add(2), id=uuid.UUID(int=5), member=member(2, join_id=uuid.UUID(int=5))),
            OperationCode.INVALID,
            "is normal and has no join request",
        ),
        (msgspec.structs.replace(refresh(2), member=member(2, address=Address("h", 3))), OperationCode.INVALID, "is"),
    ],
)
async def test_what_raft_or_the_topology_would_reject_is_refused(
    operation: Operation, code: OperationCode, words: str
) -> None:
    rig = await prepared()
    before = dict(rig.machine.store.entries)
    error = await failed(rig.leader(1), operation)
    assert (error.code, error.outcome, error.operation) == (code, Outcome.NOT_APPLIED, operation.id)
    assert words in error.message
    assert rig.machine.store.entries == before, "nothing was changed"


async def test_a_removed_host_never_comes_back() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    await leader.runner.run(remove(4))
    assert (await failed(leader, msgspec.structs.replace(add(4), id=uuid.uuid4()))).code is OperationCode.INVALID
    assert (await failed(leader, change_roles({4: MemberRole.VOTER}))).code is OperationCode.INVALID
    assert await leader.runner.run(remove(4, 50)) is None, "it is removed already"


async def test_a_normal_node_goes_only_while_there_is_no_table() -> None:
    rig = await prepared()
    keyspace = Keyspace(name="k", replication=Replication(Strategy.SIMPLE, (("", 1),)), on_tablets=False)
    table = Table(id=TableId(uuid.UUID(int=8)), keyspace="k", name="t")
    rig.commit(CreateKeyspace(keyspace), CreateTable(table))
    error = await failed(rig.leader(1), remove(3))
    assert error.code is OperationCode.REFUSED
    assert f"ebla removenode {host(3)}" in error.advice
    assert rig.role(3) is MemberRole.VOTER


async def test_a_node_past_the_way_back_is_not_removed() -> None:
    rig = await prepared(joining=TransitionState.WRITE_BOTH_READ_NEW)
    error = await failed(rig.leader(1), remove(4))
    assert (error.code, "wait until it is done" in error.advice) == (OperationCode.REFUSED, True)


async def test_the_row_of_a_node_that_joins_goes_back_with_its_removal() -> None:
    rig = await prepared(joining=TransitionState.WRITE_BOTH_READ_OLD)
    await rig.leader(1).runner.run(remove(4))
    assert rig.snapshot.transition is TransitionState.LEFT_TOKEN_RING
    rig.check_settled()


async def test_the_row_of_a_node_that_left_the_ring_is_left_with_its_removal() -> None:
    rig = await prepared(joining=TransitionState.WRITE_BOTH_READ_OLD)
    here, leader = TransitionState.WRITE_BOTH_READ_OLD, rig.leader(1)
    rig.commit(RollBackNode(host=host(4), leaving=here, reason="no room", now_ms=1), CompleteRequest(host(4), 1))
    before = TopologyVersion(rig.snapshot.version - 1)
    refusal = await failed(leader, remove(4, 62, before))
    assert (refusal.code, "no barrier yet" in refusal.message) == (OperationCode.REFUSED, True)
    await leader.runner.run(remove(4, 63, rig.snapshot.version))
    assert (rig.role(4), rig.row(4)) == (MemberRole.REMOVED, NodeState.LEFT)
    assert rig.snapshot.transition is None
    rig.check_settled()


async def test_a_node_that_was_removed_on_its_way_out_still_becomes_left() -> None:
    """An operator removes the member before the barrier: the coordinator's removal has only the row to change."""
    here = TransitionState.WRITE_BOTH_READ_OLD
    rig = await prepared(joining=here)
    leader = rig.leader(1)
    rig.commit(RollBackNode(host=host(4), leaving=here, reason="no room", now_ms=1))
    await leader.runner.run(remove(4, 62))
    assert (rig.role(4), rig.row(4)) == (MemberRole.REMOVED, NodeState.BOOTSTRAPPING)
    await leader.runner.run(remove(4, 63, rig.snapshot.version))
    assert rig.row(4) is NodeState.LEFT
    rig.check_settled()


async def test_a_member_whose_row_is_left_is_removed_without_a_change_of_the_row() -> None:
    """INV-NODE-22, for a row that another operation has put to `left`."""
    rig = await prepared()
    rig.commit(RemoveNodeWithoutData(host(4), 1))
    problem = settled_problem(rig.machine.store, rig.snapshot)
    assert problem is not None
    assert problem.startswith("INV-NODE-22")
    version = rig.snapshot.version
    await rig.leader(1).runner.run(remove(4))
    assert (rig.role(4), rig.snapshot.version) == (MemberRole.REMOVED, version)
    rig.check_settled()


async def test_an_addition_starts_the_join_and_a_repeated_one_adds_the_member_only() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    await leader.runner.run(add(NEWCOMER))
    assert (rig.role(NEWCOMER), rig.row(NEWCOMER)) == (MemberRole.LEARNER, NodeState.BOOTSTRAPPING)
    assert rig.snapshot.transition is TransitionState.JOIN_GROUP0
    state = rig_state(rig)
    gone = {key: one for key, one in state.members.items() if one.host != host(NEWCOMER)}
    operation = add(NEWCOMER)
    plan = OPERATIONS[operation.kind].plan(operation, replace(state, members=gone), 1)
    assert isinstance(plan, OperationPlan)
    assert (plan.members, plan.commands) == ((member(NEWCOMER),), ())
    rig.commit(AbortRequest(RequestId(operation.id), "wrong rack", 1))
    refusal = OPERATIONS[operation.kind].plan(operation, replace(rig_state(rig), members=gone), 1)
    assert isinstance(refusal, Refusal)
    assert "rolled back: aborted: wrong rack" in refusal.reason


def rig_state(rig: OperationRig) -> OperationState:
    return read_state(rig.machine.store, rig.snapshot)


async def test_the_only_voter_stays() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    await leader.runner.run(change_roles({2: MemberRole.LEARNER, 3: MemberRole.LEARNER}, 60))
    assert "only voter" in (await failed(leader, remove(1, 61))).message


async def test_an_id_that_has_ended_gets_its_result() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    ended = await leader.runner.run(remove(4))
    again = await rig.leader(2).runner.run(remove(4))
    assert ended is not None
    assert again == ended


async def test_a_joiner_whose_addition_was_undone_is_told() -> None:
    rig = await prepared()
    put_record(
        rig, UnfinishedOperation(kind=OperationKind.ADD_LEARNER, members=(member(9),), lock=b"", id=uuid.uuid4())
    )
    first = rig.record
    assert first is not None
    await rig.leader(1).runner.repair()
    error = await failed(rig.leader(2), msgspec.structs.replace(add(9), id=first.id))
    assert (error.code, error.outcome) == (OperationCode.UNDONE, Outcome.NOT_APPLIED)


async def test_an_unfinished_failover_comes_first() -> None:
    rig = await prepared()
    rig.apply(Transaction((), (PutKey(UNFINISHED_FAILOVER_KEY, b""),)))
    assert (await failed(rig.leader(1), add(NEWCOMER))).code is OperationCode.UNFINISHED_FAILOVER
    rig.apply(Transaction((), (DeleteKey(UNFINISHED_FAILOVER_KEY),)))
    assert await rig.leader(1).runner.run(add(NEWCOMER)) is not None


async def test_what_can_never_be_completed_is_quarantined_and_blocks_nobody() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    await leader.runner.run(remove(4))
    impossible = UnfinishedOperation(
        kind=OperationKind.CHANGE_ROLES, members=(member(4, MemberRole.VOTER),), lock=b"", id=uuid.UUID(int=70)
    )
    put_record(rig, impossible)
    await leader.runner.run(add(NEWCOMER))
    rig.check_settled()
    (quarantined,) = [one for one in ended_operations(rig.machine.store) if one.result is OperationResult.QUARANTINED]
    assert quarantined.id == impossible.id
    entries = rig.machine.store.index
    await leader.runner.repair()
    assert rig.machine.store.index == entries + 1, "the lock only: it is not tried again"
    for number in range(2 * ENDED_MAX):
        await leader.runner.run(change_roles({3: [MemberRole.VOTER, MemberRole.LEARNER][number % 2]}, 200 + number))
    kept = ended_operations(rig.machine.store)
    assert (len(kept), kept[0].id) == (ENDED_MAX + 1, impossible.id), "quarantined ones stay, of others the newest"


async def test_a_rejected_add_is_undone_by_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run did not foresee: the membership entry is rejected where it is applied."""
    rig = await prepared()
    leader = rig.leader(1)
    monkeypatch.setattr("ebla.group0.operation_steps.why_illegal", lambda _members, _targets: None)
    error = await failed(leader, newcomer(address=Address("h", 2)))
    assert (error.code, error.outcome) == (OperationCode.UNDONE, Outcome.NOT_APPLIED)
    assert rig.row(NEWCOMER) is NodeState.LEFT
    rig.check_settled()


# ---- what is known of the outcome


@pytest.mark.parametrize("entry", [1, 2, 3, 4])
@pytest.mark.parametrize("error", [Unavailable("no leader"), DeadlineExceeded("no answer")])
async def test_after_the_keys_were_sent_the_outcome_is_unknown(entry: int, error: Exception) -> None:
    rig = await prepared()
    leader = rig.leader(1)

    async def fail() -> None:
        raise error

    leader.before[entry] = fail
    failure = await failed(leader, add(NEWCOMER))
    was_sent = entry > 2 or (entry == 2 and isinstance(error, DeadlineExceeded))
    assert failure.outcome is (Outcome.UNKNOWN if was_sent else Outcome.NOT_APPLIED)
    assert failure.code is (OperationCode.CANNOT_ACQUIRE_LOCK if entry == 1 else OperationCode.TIMEOUT)


@pytest.mark.parametrize("is_janitor", [False, True])
@pytest.mark.parametrize("entry", [1, 2, 3, 4])
async def test_the_outcome_is_unknown_if_an_earlier_run_left_the_record(entry: int, is_janitor: bool) -> None:
    """The same operation is continued, by a call or by the janitor. Whatever becomes of that, the record stays."""
    rig = await prepared()
    first, second = rig.leader(1), rig.leader(2)

    async def fail() -> None:
        raise Unavailable("no leader")

    first.before[3] = second.before[entry] = fail
    assert (await failed(first, refresh(2))).outcome is Outcome.UNKNOWN
    with pytest.raises(OperationFailed) as caught:
        await (second.janitor.repair_now() if is_janitor else second.runner.run(refresh(2, 33)))
    has_read, has_changed = entry > 1, entry > 2
    assert caught.value.outcome is (
        Outcome.UNKNOWN if (has_changed if is_janitor else has_read) else Outcome.NOT_APPLIED
    )
    assert ("the repair has not ended" in caught.value.message) is (is_janitor and has_changed)


@pytest.mark.parametrize("entry", [1, 2, 3, 4])
async def test_a_step_has_fifteen_seconds(entry: int) -> None:
    rig = await prepared()
    leader = rig.leader(1)
    leader.before[entry] = asyncio.Event().wait  # type: ignore[assignment]  # it never returns
    began = asyncio.get_running_loop().time()
    failure = await failed(leader, add(NEWCOMER))
    assert asyncio.get_running_loop().time() - began == pytest.approx(runner.STEP_MS / 1000, abs=0.2)
    assert failure.outcome is (Outcome.UNKNOWN if entry > 1 else Outcome.NOT_APPLIED)


async def test_all_attempts_together_have_sixty_seconds() -> None:
    """Each step is in time, and another lock is acquired before the membership entry."""
    rig = await prepared()
    leader, operator = rig.leader(1), rig.leader(9)

    async def late() -> None:
        await asyncio.sleep(14)

    async def overtaken() -> None:
        await asyncio.sleep(14)
        await operator.acquire_lock(rig.rng, 1)

    leader.before |= {1: late, 2: late, 3: overtaken, 4: late, 5: late}
    began = asyncio.get_running_loop().time()
    failure = await failed(leader, refresh(2))
    took_s = asyncio.get_running_loop().time() - began
    assert took_s == pytest.approx((runner.RUN_MS + runner.ATTEMPT_PAUSE_MS) / 1000, abs=0.2)
    assert (failure.code, failure.outcome) == (OperationCode.TIMEOUT, Outcome.UNKNOWN)


async def test_keys_that_change_all_the_time_end_in_a_conflict() -> None:
    rig = await prepared()
    leader = rig.leader(1)

    async def overtake() -> None:
        number = leader.sent
        rig.commit(*_refreshed(number))
        leader.before[number + 1] = overtake

    leader.before[2] = overtake
    failure = await failed(leader, add(NEWCOMER))
    assert (failure.code, failure.outcome) == (OperationCode.CONFLICT, Outcome.NOT_APPLIED)
    assert leader.sent == 1 + runner.CONFLICTS_MAX + 1


def _refreshed(number: int) -> tuple[CreateKeyspace, ...]:
    replication = Replication(Strategy.SIMPLE, (("", 1),))
    return (CreateKeyspace(Keyspace(name=f"k{number}", replication=replication, on_tablets=False)),)


# ---- checks of the caller


async def test_a_check_sees_what_was_read_and_may_refuse_or_complete_the_operation() -> None:
    rig = await prepared()
    leader = rig.leader(1)

    async def refuse(asked: Operation, _handle: object, _snapshot: object, _members: object) -> Operation | None:
        raise Refused(f"not now: {asked.kind}")

    with pytest.raises(OperationFailed) as caught:
        await leader.runner.run(add(NEWCOMER), refuse)
    assert (caught.value.code, rig.record) == (OperationCode.REFUSED, None)

    async def complete(asked: Operation, _handle: object, _snapshot: object, _members: object) -> Operation | None:
        return msgspec.structs.replace(asked, reason="found out")

    ended = await leader.runner.run(remove(4), complete)
    assert ended is not None
    assert ended.reason == "found out"


# ---- the janitor


async def test_the_janitor_changes_nothing_without_a_record() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    entries = dict(rig.machine.store.entries)
    await leader.janitor.repair_now()
    assert rig.machine.store.entries == entries
    assert leader.janitor.due_in_ms() is None


async def test_a_failed_repair_arms_the_janitor_again() -> None:
    rig = await prepared()
    leader = rig.leader(1)

    async def fail() -> None:
        raise Unavailable("no quorum")

    record = UnfinishedOperation(
        kind=OperationKind.REFRESH, members=(member(2, MemberRole.VOTER, release="2"),), lock=b""
    )
    put_record(rig, record)
    leader.before[leader.sent + 1] = fail
    janitor = asyncio.get_running_loop().create_task(leader.janitor.run())
    await asyncio.sleep(1.5 * JANITOR_DELAY_MS / 1000)
    assert leader.janitor.due_in_ms() is not None
    await asyncio.sleep(JANITOR_DELAY_MS / 1000)
    janitor.cancel()
    rig.check_settled()


async def test_a_failed_hand_over_waits_for_the_delay() -> None:
    rig = await prepared()
    leader = rig.leader(3)
    record = UnfinishedOperation(kind=OperationKind.REMOVE, members=(member(3, MemberRole.REMOVED),), lock=b"")
    put_record(rig, record)

    async def transfer(_hosts: object, within_ms: int) -> None:
        raise DeadlineExceeded(f"no host took over within {within_ms} ms")

    leader.group0.running.transfer_leadership = transfer
    assert leader.janitor.due_in_ms() == 0
    with pytest.raises(OperationFailed):
        await leader.janitor.repair_now()
    assert leader.janitor.due_in_ms() == JANITOR_DELAY_MS
    assert leader.reports == ["operation.failed"]
    assert leader.sent == 0


async def test_only_a_leader_that_loses_its_vote_has_successors() -> None:
    rig = await prepared()
    group0 = cast("Group0Node", rig.leader(3).group0)
    assert successors(group0, remove(3)) == (host(1), host(2))
    demotion = change_roles({3: MemberRole.LEARNER, 2: MemberRole.LEARNER})
    assert successors(group0, demotion) == (host(1),)
    assert successors(group0, remove(2)) == ()
    assert successors(group0, exclude(3)) == (), "its check refuses the leader"
    record = UnfinishedOperation(kind=OperationKind.EXCLUDE, members=(member(3, MemberRole.LEARNER),), lock=b"")
    put_record(rig, record)
    assert successors(group0, add(NEWCOMER)) == (host(1), host(2)), "the run would repair the record first"


async def test_the_delay_counts_from_the_last_change_of_the_record_and_of_the_leader() -> None:
    rig = await prepared()
    leader = rig.leader(1)
    record = UnfinishedOperation(kind=OperationKind.REMOVE, members=(member(4, MemberRole.REMOVED),), lock=b"")
    put_record(rig, record)
    assert leader.janitor.due_in_ms() == JANITOR_DELAY_MS
    await asyncio.sleep(0.4)
    left_ms = leader.janitor.due_in_ms()
    assert left_ms is not None
    assert left_ms < JANITOR_DELAY_MS
    put_record(rig, msgspec.structs.replace(record, reason="changed"))
    assert leader.janitor.due_in_ms() == JANITOR_DELAY_MS
    await asyncio.sleep(0.4)
    leader.group0.leads = False
    assert leader.janitor.due_in_ms() is None
    leader.group0.leads = True
    assert leader.janitor.due_in_ms() == JANITOR_DELAY_MS
    assert host(4) in record.hosts


async def test_what_a_later_release_wrote_is_refused_and_ends_nothing() -> None:
    """Every node reads the record. One that it cannot read must not end them all, in an upgrade for instance."""
    rig = await prepared()
    ended = ended_operations(rig.machine.store)
    later = msgspec.msgpack.encode(["of a later release", [], b""])
    for key in (UNFINISHED_OPERATION_KEY, f"{ENDED_OPERATION_PREFIX}x"):
        rig.machine.store._put(key, later)  # past the checker, which reads it too
    leader = rig.leader(1)
    error = await failed(leader, refresh(2))
    assert (error.code, error.outcome) == (OperationCode.REFUSED, Outcome.NOT_APPLIED)
    assert "cannot read" in error.message
    assert ended_operations(rig.machine.store) == ended
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3 * JANITOR_DELAY_MS / 1000):
            await leader.janitor.run()
    assert rig.machine.store.get(UNFINISHED_OPERATION_KEY) is not None

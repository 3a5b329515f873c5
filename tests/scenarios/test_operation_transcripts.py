"""Unfinished operations, entry by entry: what the next one finds, and what it does first."""

import asyncio

import pytest
from tests.unit.control.operations.operation_rig import (
    JANITOR_DELAY_MS,
    NEWCOMER,
    Died,
    Leader,
    OperationRig,
    add,
    change_roles,
    prepared,
    refresh,
    remove,
)

from ebla.group0.members import MemberRole
from ebla.group0.operations import Operation, OperationCode, OperationFailed
from ebla.model.errors import Unavailable


async def dies_after(rig: OperationRig, operation: Operation, entry: int) -> None:
    leader = rig.leader(1)

    async def die() -> None:
        leader.die()

    leader.after[entry] = die
    with pytest.raises(Died):
        await leader.runner.run(operation)
    rig.log.append("leader 1 dies")


def check(rig: OperationRig, transcript: str) -> None:
    assert rig.log == [line.strip() for line in transcript.strip().splitlines()]
    rig.check_settled()


async def fresh() -> OperationRig:
    rig = await prepared()
    rig.log.clear()
    return rig


async def test_a_crash_after_the_keys_of_a_removal() -> None:
    """The removal is completed first, then the other operation runs."""
    rig = await fresh()
    await dies_after(rig, remove(4), 2)
    await rig.leader(2).runner.run(refresh(2))
    check(
        rig,
        """
        leader 1: lock
        leader 1: record remove 4, keys
        leader 1 dies
        leader 2: lock
        leader 2: record remove 4
        leader 2: members 4 removed
        leader 2: remove done
        leader 2: record refresh 2
        leader 2: members 2 voter
        leader 2: refresh done
        """,
    )


async def test_a_crash_after_the_keys_of_an_add() -> None:
    """The node is removed first. It never became a member, so there is no membership entry."""
    rig = await fresh()
    await dies_after(rig, add(NEWCOMER), 2)
    await rig.leader(2).runner.run(refresh(2))
    check(
        rig,
        """
        leader 1: lock
        leader 1: record add_learner 5, keys
        leader 1 dies
        leader 2: lock
        leader 2: record remove 5, keys
        leader 2: remove done, add_learner undone
        leader 2: record refresh 2
        leader 2: members 2 voter
        leader 2: refresh done
        """,
    )


async def test_a_crash_after_the_membership_entry_of_an_add() -> None:
    rig = await fresh()
    await dies_after(rig, add(NEWCOMER), 3)
    await rig.leader(2).runner.repair()
    check(
        rig,
        """
        leader 1: lock
        leader 1: record add_learner 5, keys
        leader 1: members 5 learner
        leader 1 dies
        leader 2: lock
        leader 2: record remove 5, keys
        leader 2: members 5 removed
        leader 2: remove done, add_learner undone
        """,
    )


async def test_a_repeated_call_after_the_membership_entry_only_deletes_the_record() -> None:
    rig = await fresh()
    await dies_after(rig, add(NEWCOMER), 3)
    await rig.leader(2).runner.run(add(NEWCOMER))
    check(
        rig,
        """
        leader 1: lock
        leader 1: record add_learner 5, keys
        leader 1: members 5 learner
        leader 1 dies
        leader 2: lock
        leader 2: record add_learner 5
        leader 2: add_learner done
        """,
    )


async def test_without_a_quorum_nothing_is_changed_and_the_janitor_is_armed_again() -> None:
    rig = await fresh()
    await dies_after(rig, remove(4), 2)
    second = rig.leader(2)

    async def no_quorum() -> None:
        raise Unavailable("no quorum")

    second.before[1] = no_quorum
    with pytest.raises(OperationFailed) as caught:
        await second.runner.run(refresh(2))
    assert caught.value.code is OperationCode.CANNOT_ACQUIRE_LOCK
    second.before[2] = no_quorum
    with pytest.raises(OperationFailed):
        await second.janitor.repair_now()
    assert second.janitor.due_in_ms() is not None
    janitor = asyncio.get_running_loop().create_task(second.janitor.run())
    await asyncio.sleep(1.2 * JANITOR_DELAY_MS / 1000)
    janitor.cancel()
    check(
        rig,
        """
        leader 1: lock
        leader 1: record remove 4, keys
        leader 1 dies
        leader 2: lock
        leader 2: record remove 4
        leader 2: members 4 removed
        leader 2: remove done
        """,
    )


async def test_three_locks_in_a_row_leave_the_record_to_the_janitor() -> None:
    rig = await fresh()
    leader, operator = rig.leader(1), rig.leader(9)
    operator.name = "operator"

    async def take(leader: Leader = leader) -> None:
        await operator.acquire_lock(rig.rng, 1)
        leader.before[leader.sent + 3] = take

    leader.before[3] = take
    with pytest.raises(OperationFailed) as caught:
        await leader.runner.run(change_roles({4: MemberRole.VOTER}))
    assert caught.value.code is OperationCode.LOCK_CONFLICT
    leader.before.clear()
    await leader.janitor.repair_now()
    attempt = """
        leader 1: lock
        leader 1: record change_roles 4
        operator: lock
        leader 1: members 4 voter: LockRevoked
        """
    check(
        rig,
        f"""
        {3 * attempt}
        leader 1: lock
        leader 1: record change_roles 4
        leader 1: members 4 voter
        leader 1: change_roles done
        """.replace("\n        \n", "\n"),
    )

"""Every point at which a run can end, for every operation, with every call that may follow: keys and members agree
within one janitor delay. The real store, the real runner.

The rig checks INV-ATOM-1 to INV-ATOM-4: INV-ATOM-2 and INV-ATOM-3 after every entry, INV-ATOM-1 and INV-ATOM-4 when
nothing is left to do.
"""

from collections.abc import Collection

import pytest
from tests.unit.control.operations.operation_rig import (
    ENTRIES,
    NEWCOMER,
    POINTS,
    Leader,
    OperationRig,
    add,
    call,
    change_roles,
    cloned,
    died_at,
    exclude,
    host,
    include,
    prepared,
    refresh,
    remove,
    within_one_delay,
)

from ebla.group0.members import MemberRole
from ebla.group0.operations import Operation, OperationFailed
from ebla.model.errors import Outcome
from ebla.model.identity import HostId
from ebla.topology.states import NodeState, TransitionState

OPERATIONS: dict[str, Operation] = {
    "add": add(NEWCOMER),
    "remove-joining": remove(NEWCOMER),
    "remove-normal": remove(3, 4),
    "roles": change_roles({4: MemberRole.VOTER, 3: MemberRole.LEARNER}),
    "refresh": refresh(2),
    "exclude": exclude(3),
    "include": include(2),
}
WHO = ("same", "another")


async def base_for(first: str, following: str = "") -> OperationRig:
    """Host 2 is excluded where it is to be included. The newcomer is added where it is to be removed, unless the first
    operation needs that the topology is idle."""
    rig = await prepared(excluded=(2,) if "include" in (first, following) else ())
    needs_rest = first in ("add", "remove-normal", "include")
    if "remove-joining" in (first, following) and not needs_rest:
        await rig.leader(1).runner.run(add(NEWCOMER))
    return rig


def is_undone(rig: OperationRig, name: str, point: tuple[int, str]) -> bool:
    return name == "add" and point not in ((1, "before"), (1, "after"), (2, "before"), (4, "after"))


def is_done(rig: OperationRig, name: str) -> bool:
    match name:
        case "add":
            return rig.role(NEWCOMER) is MemberRole.LEARNER
        case "remove-joining":
            return rig.role(NEWCOMER) is MemberRole.REMOVED
        case "remove-normal":
            return rig.role(3) is MemberRole.REMOVED
        case "roles":
            return (rig.role(4), rig.role(3)) == (MemberRole.VOTER, MemberRole.LEARNER)
        case "exclude":
            is_excluded = rig.snapshot.exclusion_of(host(3)) is not None
            assert rig.snapshot.state.failover_count == is_excluded, "a repeat does not count again"
            return is_excluded and rig.role(3) is MemberRole.LEARNER
        case "include":
            return rig.snapshot.exclusion_of(host(2)) is None and rig.role(2) is MemberRole.VOTER
        case _:
            return any(one.release == "2" for one in rig.machine.store.members.values())


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_run_that_dies_is_repaired_by_the_janitor(name: str) -> None:
    base = await base_for(name)
    for point in POINTS:
        rig = cloned(base)
        await died_at(rig, OPERATIONS[name], point)
        has_keys = point[0] > 2 or point == (2, "after")
        await within_one_delay(rig, rig.leader(2))
        expected = has_keys and (name != "add" or point == (4, "after"))
        assert is_done(rig, name) is expected, f"{name} died {point}"


@pytest.mark.parametrize("name", ["remove-normal", "roles", "exclude"])
async def test_a_leader_that_would_lose_its_vote_by_the_repair_hands_over_at_once(name: str) -> None:
    """Otherwise it would stop leading before the last step, and the record would wait for a second delay."""
    rig = await base_for(name)
    await died_at(rig, OPERATIONS[name], (2, "after"))
    loser, successor = rig.leader(3), rig.leader(2)
    successor.group0.leads = False
    asked: list[Collection[HostId]] = []

    async def transfer(hosts: Collection[HostId], _within_ms: int) -> None:
        asked.append(hosts)
        loser.group0.leads, successor.group0.leads = False, True

    loser.group0.running.transfer_leadership = transfer
    await within_one_delay(rig, loser, successor)
    assert asked == [(host(1), host(2))]
    assert loser.sent == 0
    assert is_done(rig, name)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_run_that_dies_is_continued_by_the_same_call(name: str, who: str) -> None:
    """On another leader, or on the same host after its restart."""
    base = await base_for(name)
    for point in POINTS:
        rig = cloned(base)
        await died_at(rig, OPERATIONS[name], point)
        leader = rig.leader(1 if who == "same" else 2)
        result = await call(rig, leader, OPERATIONS[name])
        assert not isinstance(result, OperationFailed), f"{name} died {point}: {result}"
        rig.check_settled()
        assert is_done(rig, name)


@pytest.mark.parametrize("following", OPERATIONS)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_run_that_dies_is_repaired_by_any_other_call(name: str, following: str) -> None:
    if name == following:
        return
    base = await base_for(name, following)
    for point in POINTS:
        for who in WHO:
            rig = cloned(base)
            await died_at(rig, OPERATIONS[name], point)
            leader = rig.leader(1 if who == "same" else 2)
            result = await call(rig, leader, OPERATIONS[following])
            if isinstance(result, OperationFailed):
                assert result.outcome is Outcome.NOT_APPLIED
            await within_one_delay(rig, leader)
            assert not is_undone(rig, name, point) or not is_done(rig, name), f"{name} died {point}, then {following}"
            assert rig.row(NEWCOMER) is not NodeState.BOOTSTRAPPING or rig.role(NEWCOMER) is MemberRole.LEARNER


@pytest.mark.parametrize("following", OPERATIONS)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_two_leaders_at_once(name: str, following: str) -> None:
    """The second runs whole between any two entries of the first, which then goes on with a lock that is revoked."""
    base = await base_for(name, following)
    for point in POINTS:
        rig = cloned(base)
        first, second = rig.leader(1), rig.leader(2)
        results: list[object] = []

        async def overtake(rig: OperationRig = rig, second: Leader = second, results: list[object] = results) -> None:
            results.append(await call(rig, second, OPERATIONS[following]))

        number, when = point
        (first.before if when == "before" else first.after)[number] = overtake
        results.append(await call(rig, first, OPERATIONS[name]))
        assert len(results) == 2
        await within_one_delay(rig, first, second)


@pytest.mark.parametrize("reached", [TransitionState.JOIN_GROUP0, TransitionState.COMMIT_CDC_GENERATION])
async def test_the_removal_of_a_node_that_joins(reached: TransitionState) -> None:
    base = await prepared(joining=reached)
    for point in POINTS:
        for again in (True, False):
            rig = cloned(base)
            await died_at(rig, remove(4), point)
            if again:
                assert not isinstance(await call(rig, rig.leader(2), remove(4, 77)), OperationFailed)
            await within_one_delay(rig, rig.leader(3))
            has_keys = point[0] > 2 or point == (2, "after")
            assert (rig.role(4) is MemberRole.REMOVED) is (again or has_keys)


async def test_a_lock_taken_by_an_operator_again_and_again() -> None:
    """The run gives up after three attempts, and says what is known."""
    base = await prepared()
    for entry in range(2, ENTRIES + 1):
        rig = cloned(base)
        leader, operator = rig.leader(1), rig.leader(9)

        async def take(operator: Leader = operator, leader: Leader = leader, entry: int = entry) -> None:
            await operator.acquire_lock(operator.rig.rng, 1)
            leader.before[leader.sent + min(entry, 3)] = take  # what is done is skipped

        leader.before[entry] = take
        result = await call(rig, leader, add(NEWCOMER))
        assert isinstance(result, OperationFailed)
        assert result.code == "lock_conflict"
        assert result.outcome is (Outcome.NOT_APPLIED if entry == 2 else Outcome.UNKNOWN)
        leader.before.clear()
        await within_one_delay(rig, leader)
        assert rig.role(NEWCOMER) is not MemberRole.LEARNER

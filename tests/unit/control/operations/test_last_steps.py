"""The operations that end a leave, a remove and a replace, and the addition of a node at the address of the one that it
replaces: every point at which a run can end (INV-ATOM-1 to INV-ATOM-4). The real store, the real runner."""

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.control.operations.operation_rig import (
    POINTS,
    OperationRig,
    add,
    call,
    cloned,
    died_at,
    host,
    member,
    node,
    prepared,
    remove,
    within_one_delay,
)

from ebla.group0.members import RELEASED_ADDRESS, Member, MemberRole, member_key
from ebla.group0.operations import Operation, OperationCode, OperationFailed
from ebla.model.identity import RequestId
from ebla.topology.commands import RollBackNode, StartNodeRequest, SubmitJoin, SubmitNodeRequest
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, TransitionState

LEAVER = 4
DEAD = 3
"""A voter."""
SUCCESSOR = 6
"""At the address of the dead node."""


def requested(rig: OperationRig, kind: NodeRequestKind, number: int) -> RequestId:
    request = NodeRequest(
        id=RequestId(add(SUCCESSOR).id),
        kind=kind,
        host=host(number),
        initiator=host(1),
        start_ms=2,
        replaced=host(DEAD) if kind is NodeRequestKind.REPLACE else None,
    )
    if kind is NodeRequestKind.REPLACE:
        row = msgspec.structs.replace(node(SUCCESSOR), address=node(DEAD).address)
        rig.commit(SubmitJoin(row, request))
    else:
        rig.commit(SubmitNodeRequest(request))
    return request.id


def successor() -> Operation:
    taken = msgspec.structs.replace(member(SUCCESSOR), address=member(DEAD).address)
    return msgspec.structs.replace(add(SUCCESSOR), member=taken)


async def leaving() -> OperationRig:
    rig = await prepared()
    rig.commit(StartNodeRequest(requested(rig, NodeRequestKind.LEAVE, LEAVER)))
    rig.drive(until=TransitionState.LEFT_TOKEN_RING)
    return rig


async def removing() -> OperationRig:
    rig = await prepared()
    rig.commit(StartNodeRequest(requested(rig, NodeRequestKind.REMOVE, DEAD)))
    rig.drive(until=TransitionState.WRITE_BOTH_READ_NEW)
    return rig


async def about_to_replace() -> OperationRig:
    rig = await prepared()
    requested(rig, NodeRequestKind.REPLACE, SUCCESSOR)
    return rig


async def replacing(until: TransitionState = TransitionState.WRITE_BOTH_READ_NEW) -> OperationRig:
    rig = await about_to_replace()
    await rig.leader(1).runner.run(successor())
    rig.drive(until=until)
    return rig


def entry(rig: OperationRig, number: int) -> Member | None:
    return rig.machine.store.members.get(member_key(host(number)))


def has_gone(number: int) -> Callable[[OperationRig], bool]:
    def check(rig: OperationRig) -> bool:
        is_removed = rig.role(number) is MemberRole.REMOVED
        assert (rig.row(number) is NodeState.LEFT) is is_removed, "keys and members agree"
        return is_removed

    return check


def has_replaced(rig: OperationRig) -> bool:
    is_done = has_gone(DEAD)(rig)
    assert (rig.row(SUCCESSOR) is NodeState.NORMAL) is is_done, "one commit changes both rows"
    new = entry(rig, SUCCESSOR)
    assert new is not None
    assert (new.role, new.address) == (MemberRole.LEARNER, member(DEAD).address)
    return is_done


def has_taken_the_address(rig: OperationRig) -> bool:
    old, new = entry(rig, DEAD), entry(rig, SUCCESSOR)
    assert old is not None
    assert old.role is MemberRole.VOTER
    is_added = new is not None and new.present
    assert old.address == (RELEASED_ADDRESS if is_added else member(DEAD).address)
    return is_added


ENDINGS = {
    "leave": (leaving, LEAVER, has_gone(LEAVER)),
    "remove": (removing, DEAD, has_gone(DEAD)),
    "replace": (replacing, DEAD, has_replaced),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_last_step_that_dies_is_completed_once_its_keys_are_committed(name: str) -> None:
    prepare, number, is_done = ENDINGS[name]
    base = await prepare()
    operation = remove(number, fence=base.snapshot.version)
    for point in POINTS:
        rig = cloned(base)
        await died_at(rig, operation, point)
        await within_one_delay(rig, rig.leader(2))
        assert is_done(rig) is (point[0] > 2 or point == (2, "after")), f"died {point}"
        result = await call(rig, rig.leader(2), operation)
        assert not isinstance(result, OperationFailed), f"died {point}: {result}"
        assert is_done(rig)
        assert rig.snapshot.node_in_transition() is None
        assert rig.snapshot.state.ignored_nodes == ()
        rig.check_settled()


async def test_the_addition_at_the_old_address_is_whole_or_undone() -> None:
    base = await about_to_replace()
    for point in POINTS:
        rig = cloned(base)
        await died_at(rig, successor(), point)
        rig_again = cloned(rig)
        await within_one_delay(rig, rig.leader(2))
        assert has_taken_the_address(rig) is (point == (4, "after")), f"died {point}"
        result = await call(rig_again, rig_again.leader(2), successor())
        assert not isinstance(result, OperationFailed), f"died {point}: {result}"
        assert has_taken_the_address(rig_again)
        rig_again.check_settled()


async def test_a_failed_replace_gives_the_address_back() -> None:
    rig = await replacing(TransitionState.WRITE_BOTH_READ_OLD)
    here = TransitionState.WRITE_BOTH_READ_OLD
    rig.commit(RollBackNode(host=host(SUCCESSOR), leaving=here, reason="no room", now_ms=1))
    assert has_taken_the_address(rig)
    operation = remove(SUCCESSOR, fence=rig.snapshot.version)
    base = rig
    for point in POINTS:
        rig = cloned(base)
        await died_at(rig, operation, point)
        await call(rig, rig.leader(2), operation)
        assert not has_taken_the_address(rig)
        assert (rig.row(SUCCESSOR), rig.row(DEAD)) == (NodeState.LEFT, NodeState.NORMAL)
        assert rig.snapshot.state.ignored_nodes == ()
        rig.check_settled()


@pytest.mark.parametrize("name", ["remove", "replace"])
async def test_without_a_barrier_the_dead_node_is_not_removed(name: str) -> None:
    prepare, number, is_done = ENDINGS[name]
    rig = await prepare()
    stale = rig.snapshot.state.transition_since - 1
    for fence in (0, stale):
        failed = await call(rig, rig.leader(1), remove(number, 50 + fence, fence))
        assert isinstance(failed, OperationFailed)
        assert failed.code is OperationCode.REFUSED
        assert not is_done(rig)


async def test_a_node_of_a_running_operation_is_not_removed_meanwhile() -> None:
    rig = await prepared()
    request = requested(rig, NodeRequestKind.LEAVE, LEAVER)
    rig.commit(StartNodeRequest(request))
    failed = await call(rig, rig.leader(1), remove(LEAVER))
    assert isinstance(failed, OperationFailed)
    assert f"ebla topology abort {request}" in failed.advice
    rig = await replacing(TransitionState.TABLET_DRAINING)
    failed = await call(rig, rig.leader(1), remove(DEAD))
    assert isinstance(failed, OperationFailed)
    assert "is not done yet" in failed.message


async def test_an_answered_leave_is_ended_by_the_removal_alone() -> None:
    rig = await leaving()
    request = rig.snapshot.node(host(LEAVER)).request
    assert request is not None
    await rig.leader(1).runner.run(remove(LEAVER, fence=rig.snapshot.version))
    assert rig.snapshot.node_requests[request].outcome is RequestOutcome.DONE

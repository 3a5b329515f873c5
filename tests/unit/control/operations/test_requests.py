"""Requests on a node that does not lead: repeated under their id, with what is known of the outcome."""

import uuid
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.unit.control.operations.operation_rig import (
    NEWCOMER,
    Leader,
    OperationRig,
    add,
    change_roles,
    host,
    prepared,
)

from ebla.control.operations.operation_service import Operations
from ebla.group0.members import MemberRole
from ebla.group0.operations import (
    OperationCode,
    OperationFailed,
    OperationKind,
    OperationResult,
    ended_operation_key,
    ended_operations,
    why_malformed,
)
from ebla.model.errors import ConnectionLost, EblaError, InvalidRequest, Outcome, Unavailable, Unreachable
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import PutKey, Transaction
from ebla.wire.operation_messages import OperateAnswer, OperateRequest, OperationsAnswer, OperationsRequest
from ebla.wire.peers import Peers
from ebla.wire.verbs import OPERATIONS

OPERATION = add(NEWCOMER)


def answer(code: OperationCode | None, outcome: Outcome = Outcome.NOT_APPLIED) -> OperateAnswer:
    return OperateAnswer(operation=OPERATION.id, code=code, outcome=outcome)


class ScriptedLeader:
    """What becomes of the calls to the leader, one after another."""

    def __init__(self, *script: OperateAnswer | EblaError) -> None:
        self.script = list(script)
        self.asked: list[OperateRequest] = []

    async def call(self, _host: object, _verb: object, request: OperateRequest, _deadline_ms: int) -> OperateAnswer:
        self.asked.append(request)
        step = self.script.pop(0)
        if isinstance(step, EblaError):
            raise step
        return step


async def requests(leader: ScriptedLeader) -> Operations:
    rig = await prepared()
    own = rig.leader(2)
    running: Any = own.group0.running
    running.leader_host = lambda: host(1)
    deps: Any = SimpleNamespace(
        group0=own.group0, topology=rig.topology, clock=None, report=None, reach=None, rng=rig.rng
    )
    return Operations(deps, cast("Peers", leader), lambda: 1_000)


async def test_it_is_sent_again_under_its_id_until_a_leader_answers() -> None:
    leader = ScriptedLeader(
        Unreachable("gone"),
        ConnectionLost("died"),
        answer(OperationCode.NOT_LEADER, Outcome.UNKNOWN),
        InvalidRequest("an earlier release does not know the verb"),
        answer(None),
    )
    assert await (await requests(leader)).request(OPERATION) is None
    assert [one.operation for one in leader.asked] == [OPERATION] * 5


@pytest.mark.parametrize(
    ("first", "code", "outcome"),
    [
        (Unreachable("gone"), OperationCode.NO_QUORUM, Outcome.NOT_APPLIED),
        (ConnectionLost("died"), OperationCode.NO_QUORUM, Outcome.UNKNOWN),
        (ConnectionLost("died"), OperationCode.CANNOT_ACQUIRE_LOCK, Outcome.UNKNOWN),
        (ConnectionLost("died"), OperationCode.REFUSED, Outcome.NOT_APPLIED),
        (ConnectionLost("died"), OperationCode.UNDONE, Outcome.NOT_APPLIED),
        (answer(OperationCode.RUNNING), OperationCode.NO_QUORUM, Outcome.NOT_APPLIED),
    ],
)
async def test_what_an_earlier_leader_may_have_committed_is_unknown(
    first: OperateAnswer | EblaError, code: OperationCode, outcome: Outcome
) -> None:
    """Unless a later one has looked: it would have continued what it found."""
    operations = await requests(ScriptedLeader(first, answer(code)))
    with pytest.raises(OperationFailed) as caught:
        await operations.request(OPERATION)
    assert (caught.value.code, caught.value.outcome) == (code, outcome)


async def test_what_still_runs_is_unknown_when_the_time_is_over_or_the_leader_is_another() -> None:
    still = answer(OperationCode.RUNNING)
    operations = await requests(ScriptedLeader(*[still] * 100))
    with pytest.raises(OperationFailed) as caught:
        await operations.request(OPERATION, 1_000)
    assert (caught.value.code, caught.value.outcome) == (OperationCode.TIMEOUT, Outcome.UNKNOWN)
    operations = await requests(ScriptedLeader(still, answer(OperationCode.NO_QUORUM)))
    running: Any = operations._deps.group0.running
    leaders = iter((host(1), host(1), host(3), host(3)))
    running.leader_host = lambda: next(leaders)
    with pytest.raises(OperationFailed) as caught:
        await operations.request(OPERATION)
    assert (caught.value.code, caught.value.outcome) == (OperationCode.NO_QUORUM, Outcome.UNKNOWN)


@pytest.mark.parametrize(
    "changed",
    [
        {"hosts": ()},
        {"hosts": (host(NEWCOMER), host(1))},
        {"hosts": (host(1),)},
        {"member": None},
        {"kind": OperationKind.CHANGE_ROLES},
    ],
)
def test_a_malformed_operation_is_told(changed: dict[str, Any]) -> None:
    assert not why_malformed(OPERATION)
    assert why_malformed(msgspec.structs.replace(OPERATION, **changed))


# ---- `ebla operations` on the leader


async def reported(operations: Operations, **fields: Any) -> OperationsAnswer:
    served: dict[object, Any] = {}
    server: Any = SimpleNamespace(serve=served.__setitem__)
    operations.serve_on(server)
    call = SimpleNamespace(work_ms=lambda: 1_000)
    answer: OperationsAnswer = await served[OPERATIONS](OperationsRequest(**fields), call)
    return answer


async def leading() -> tuple[OperationRig, Leader, Operations]:
    rig = await prepared()
    leader = rig.leader(1)
    running: Any = leader.group0.running
    running.leader_host = lambda: leader.host
    return rig, leader, Operations(leader.runner._deps, cast("Peers", None), lambda: 1_000)


async def test_a_repair_by_command_says_how_it_ended() -> None:
    rig, leader, operations = await leading()
    assert (await reported(operations, repair=True)).repaired == OperateAnswer(operation=None)
    unfinished = change_roles({4: MemberRole.VOTER})

    async def fail() -> None:
        raise Unavailable("no quorum")

    leader.sent = 0
    leader.before[3] = fail
    with pytest.raises(OperationFailed):
        await leader.runner.run(unfinished)
    leader.before[leader.sent + 1] = fail
    failed = await reported(operations, repair=True)
    assert failed.repaired is not None
    assert (failed.repaired.operation, failed.repaired.code) == (unfinished.id, OperationCode.CANNOT_ACQUIRE_LOCK)
    assert failed.unfinished is not None
    done = await reported(operations, repair=True)
    assert (done.repaired, done.unfinished) == (OperateAnswer(operation=unfinished.id), None)
    assert rig.role(4) is MemberRole.VOTER


async def test_only_a_quarantined_operation_is_dismissed() -> None:
    rig, leader, operations = await leading()
    await leader.runner.run(change_roles({4: MemberRole.VOTER}))
    (done, *_) = reversed(ended_operations(rig.machine.store))
    with pytest.raises(InvalidRequest, match="no quarantined operation"):
        await reported(operations, dismiss=done.id)
    quarantined = msgspec.structs.replace(done, id=uuid.UUID(int=77), result=OperationResult.QUARANTINED)
    rig.apply(Transaction((), (PutKey(ended_operation_key(quarantined.id), encode_stored(StoredValue(quarantined))),)))
    assert quarantined in (await reported(operations)).ended
    assert any(str(quarantined.id) in one for one in operations.warnings())
    assert quarantined not in (await reported(operations, dismiss=quarantined.id)).ended
    assert operations.warnings() == ()

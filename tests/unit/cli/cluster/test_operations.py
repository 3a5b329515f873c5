"""`ebla operations`: what is unfinished, and how others ended."""

import uuid

from ebla.cli.cluster.operations import describe_unfinished, ended_rows, operations_json
from ebla.group0.members import Member, MemberRole
from ebla.group0.operations import EndedOperation, OperationKind, OperationResult, UnfinishedOperation
from ebla.model.identity import Address, HostId
from ebla.wire.operation_messages import OperationsAnswer

HOST = HostId(uuid.UUID(int=1))
MEMBER = Member(host=HOST, role=MemberRole.REMOVED, address=Address("h", 1))


def ended(number: int, result: OperationResult = OperationResult.DONE) -> EndedOperation:
    return EndedOperation(
        id=uuid.UUID(int=number), kind=OperationKind.REMOVE, members=(MEMBER,), result=result, end_ms=1_000 * number
    )


def answer(**fields: object) -> OperationsAnswer:
    return OperationsAnswer(host=HOST, is_leader=True, now_ms=60_000, **fields)  # type: ignore[arg-type]  # any fields


def test_the_unfinished_one_with_its_step_and_the_next_run_of_the_janitor() -> None:
    assert describe_unfinished(answer()) == "no operation is unfinished"
    record = UnfinishedOperation(
        kind=OperationKind.REMOVE, members=(MEMBER,), lock=b"secret", id=uuid.UUID(int=7), host=HOST, start_ms=50_000
    )
    text = describe_unfinished(answer(unfinished=record, step="members", janitor_in_ms=48_000))
    for words in ("remove of", str(HOST), "10 s ago", "step: members", "repairs it in 48 s"):
        assert words in text
    shown = operations_json(answer(unfinished=record))
    assert "secret" not in str(shown), "a lock is a right"


def test_quarantined_ones_come_first_then_the_newest() -> None:
    quarantined = ended(1, OperationResult.QUARANTINED)
    rows = ended_rows(answer(ended=(quarantined, *(ended(number) for number in range(2, 20)))))
    assert rows[0][3] == "quarantined"
    assert [row[4] for row in rows[1:3]] == ["41 s ago", "42 s ago"]
    assert len(rows) == 11

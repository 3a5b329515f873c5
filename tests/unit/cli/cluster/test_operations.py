"""`ebla operations`: what is unfinished, and how others ended."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from ebla.cli import command
from ebla.cli.app import app
from ebla.cli.cluster.operations import describe_unfinished, ended_rows, operations_json, resolve_host
from ebla.cli.command import NodeFlags
from ebla.group0.members import Member, MemberRole
from ebla.group0.operations import (
    EndedOperation,
    OperationCode,
    OperationKind,
    OperationResult,
    UnfinishedOperation,
)
from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, InvalidRequest, Outcome, Refused
from ebla.model.identity import Address, HostId
from ebla.wire.operation_messages import OperateAnswer, OperationsAnswer

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


# ---- exit statuses


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Sets what every call to the node answers, or raises."""

    def answers(result: object) -> None:
        def call(*_arguments: object) -> object:
            if isinstance(result, EblaError):
                raise result
            return result

        monkeypatch.setattr(command, "call_node", call)

    return answers


@pytest.mark.parametrize(
    ("code", "outcome", "status"),
    [
        (None, Outcome.NOT_APPLIED, 0),
        (OperationCode.CANNOT_ACQUIRE_LOCK, Outcome.NOT_APPLIED, 1),
        (OperationCode.LOCK_CONFLICT, Outcome.UNKNOWN, 3),
    ],
)
def test_a_repair_says_how_it_ended(
    node: Callable[[object], None], code: OperationCode | None, outcome: Outcome, status: int
) -> None:
    repaired = OperateAnswer(operation=uuid.UUID(int=7), code=code, outcome=outcome, message="the reason")
    node(answer(repaired=repaired))
    plain = CliRunner().invoke(app, ["operations", "--repair"])
    assert plain.exit_code == status
    assert ("the reason" in plain.stderr) is (code is not None)
    shown = CliRunner().invoke(app, ["operations", "--repair", "--json"])
    assert shown.exit_code == status
    fields = json.loads(shown.stdout)
    assert fields["operation_id"] == str(uuid.UUID(int=7))
    assert (fields["code"], fields["outcome"]) == (str(code or "done"), "done" if code is None else str(outcome))


@pytest.mark.parametrize("arguments", [("operations", "--dismiss", str(uuid.UUID(int=7))), ("failover", "--reset")])
def test_a_change_without_an_operation_has_the_same_exit_statuses(
    node: Callable[[object], None], arguments: tuple[str, ...]
) -> None:
    for error, outcome, status in ((DeadlineExceeded("late"), "unknown", 3), (Refused("no"), "not_applied", 1)):
        node(error)
        assert CliRunner().invoke(app, arguments).exit_code == status
        shown = CliRunner().invoke(app, [*arguments, "--json"])
        assert (shown.exit_code, json.loads(shown.stdout)["outcome"]) == (status, outcome)


def test_a_host_that_cannot_be_looked_up_changes_nothing(node: Callable[[object], None]) -> None:
    """The call that was lost is a read."""
    node(ConnectionLost("the node ended"))
    failed = CliRunner().invoke(app, ["failover", "node3"])
    assert (failed.exit_code, failed.stderr) == (1, "ebla: not applied: the node ended\n")


# ---- naming hosts


@dataclass(frozen=True, kw_only=True)
class Flags(NodeFlags):
    """Of a command in a cluster of two hosts; another one had the address of the second before."""

    def call(self, *_: object) -> Any:
        members = [
            Member(host=HostId(uuid.UUID(ident)), role=role, address=Address(address, 7000))
            for ident, role, address in (
                ("aaaa1111-0000-4000-8000-000000000001", MemberRole.VOTER, "127.0.0.1"),
                ("aaaa2222-0000-4000-8000-000000000002", MemberRole.VOTER, "127.0.0.2"),
                ("bbbb3333-0000-4000-8000-000000000003", MemberRole.REMOVED, "127.0.0.2"),
            )
        ]
        return SimpleNamespace(members=[SimpleNamespace(member=one) for one in members])


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("127.0.0.1", "aaaa1111"),
        ("127.0.0.2:7000", "aaaa2222"),
        ("AAAA2", "aaaa2222"),
        ("bbbb3333-0000-4000-8000-000000000003", "bbbb3333"),
    ],
)
def test_a_host_goes_by_address_id_or_first_digits(text: str, digits: str, tmp_path: Path) -> None:
    assert str(resolve_host(Flags(data=tmp_path), text)).startswith(digits)


@pytest.mark.parametrize("text", ["aaaa", "aaa", "bbbb3", "cccc", "node1"])
def test_an_ambiguous_or_unknown_name_lists_the_members(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as error:
        resolve_host(Flags(data=tmp_path), text)
    assert "aaaa1111-0000-4000-8000-000000000001 (127.0.0.1:7000), aaaa2222-" in error.value.advice
    assert "bbbb3333" not in error.value.advice

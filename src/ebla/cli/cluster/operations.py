"""`ebla operations`: changes of members, those that wait to be repaired and how the latest ones ended."""

import asyncio
import sys
import uuid
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from ebla.cli.cluster.local_cluster import find_nodes
from ebla.cli.cluster.node_calls import choose_node, control_caller, local_transport, run_async
from ebla.cli.command import NodeFlags, TableFlags, add_command
from ebla.cli.output import print_json
from ebla.client.topology_view import PREFIX_DIGITS_MIN
from ebla.group0.operations import EndedOperation, Operation, OperationCode, OperationResult, UnfinishedOperation
from ebla.model.errors import EblaError, InvalidRequest, Outcome, Unavailable
from ebla.model.identity import HostId
from ebla.wire.group0_messages import MembersRequest
from ebla.wire.operation_messages import OperateAnswer, OperateRequest, OperationsAnswer, OperationsRequest
from ebla.wire.verbs import GROUP0_MEMBERS, OPERATE, OPERATIONS

CALL_MS = 5_000
OPERATION_MS = 100_000
"""A run, the wait for its quorum, and the answer."""
UNKNOWN_STATUS = 3
SHOWN_ENDED = 10
PROGRESS_S = 2.0
NOTHING_FAILED = OperateAnswer(operation=None)
"""Of a request that is no operation itself."""

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, is_change=True)
def operations(
    flags: TableFlags,
    repair: Annotated[bool, typer.Option("--repair", help="Complete or undo the unfinished one now.")] = False,
    dismiss: Annotated[
        UUID | None, typer.Option("--dismiss", metavar="ID", help="Forget this quarantined operation.")
    ] = None,
) -> int:
    """Show changes of members: the unfinished one, quarantined ones, and how the latest ended."""
    request = OperationsRequest(repair=repair, dismiss=dismiss)
    try:
        answer = flags.call(OPERATIONS, request, OPERATION_MS if repair else CALL_MS)
    except EblaError as error:
        if not repair and dismiss is None:
            raise
        return report_answer(flags, failed_answer(error, dismiss), "")
    done = answer.repaired or NOTHING_FAILED
    if flags.as_json:
        changed = answer_json(done) if repair or dismiss is not None else {}
        print_json(msgspec.to_builtins({**operations_json(answer), **changed}))
        return exit_status(done)
    typer.echo(describe_unfinished(answer))
    rows = ended_rows(answer)
    if rows:
        names = ("operation", "kind", "hosts", "result", "ended", "reason")
        flags.print_records(names, rows, less_important=("hosts", "operation"))
    return report_answer(flags, done, "")


def describe_unfinished(answer: OperationsAnswer) -> str:
    record = answer.unfinished
    if record is None:
        return "no operation is unfinished"
    since_s = max(0, answer.now_ms - record.start_ms) / 1000
    hosts = ", ".join(map(str, record.hosts))
    step = f", step: {answer.step}" if answer.step else ""
    janitor = "" if answer.janitor_in_ms is None else f", the janitor repairs it in {answer.janitor_in_ms / 1000:.0f} s"
    started = f"started by {record.host} {since_s:.0f} s ago"
    return f"unfinished: {record.kind} of {hosts} ({record.id}), {started}{step}{janitor}"


def ended_rows(answer: OperationsAnswer) -> list[list[str]]:
    """Quarantined ones, then the newest."""
    quarantined = [one for one in answer.ended if one.result is OperationResult.QUARANTINED]
    others = [one for one in answer.ended if one.result is not OperationResult.QUARANTINED]
    return [_row(one, answer.now_ms) for one in (*quarantined, *others[: -SHOWN_ENDED - 1 : -1])]


def _row(one: EndedOperation, now_ms: int) -> list[str]:
    ended = f"{max(0, now_ms - one.end_ms) / 1000:.0f} s ago"
    return [str(one.id), str(one.kind), ", ".join(map(str, one.hosts)), str(one.result), ended, one.reason]


def operations_json(answer: OperationsAnswer) -> dict[str, object]:
    def fields(one: UnfinishedOperation | EndedOperation) -> dict[str, object]:
        hidden = ("members", "lock")
        values = {name: getattr(one, name) for name in one.__struct_fields__ if name not in hidden}
        return {**values, "hosts": [str(host) for host in one.hosts]}

    return {
        "host": answer.host,
        "is_leader": answer.is_leader,
        "unfinished": None if answer.unfinished is None else fields(answer.unfinished),
        "step": answer.step,
        "janitor_in_ms": answer.janitor_in_ms,
        "ended": [fields(one) for one in answer.ended],
    }


# ---- for the commands that run an operation


def run_operation(flags: NodeFlags, operation: Operation, done: str) -> int:
    """Returns the exit status."""
    return report_answer(flags, run_async(_operate(flags, operation)), done)


def report_answer(flags: NodeFlags, answer: OperateAnswer, done: str) -> int:
    """Returns the exit status. `done`: what to say of success."""
    if flags.as_json:
        print_json(answer_json(answer))
    elif answer.code is not None:
        what = "not applied" if answer.outcome is Outcome.NOT_APPLIED else "unknown whether it was applied"
        advice = f"; {answer.advice}" if answer.advice else ""
        sys.stderr.write(f"ebla: {what}: {answer.message} ({answer.code}){advice}\n")
    elif done:
        typer.echo(done)
    return exit_status(answer)


def answer_json(answer: OperateAnswer) -> dict[str, object]:
    return {
        "operation_id": None if answer.operation is None else str(answer.operation),
        "code": "done" if answer.code is None else str(answer.code),
        "outcome": "done" if answer.code is None else str(answer.outcome),
        "message": answer.message,
        "advice": answer.advice,
    }


def exit_status(answer: OperateAnswer) -> int:
    """0 done, 1 not applied, 3 unknown."""
    if answer.code is None:
        return 0
    return 1 if answer.outcome is Outcome.NOT_APPLIED else UNKNOWN_STATUS


async def _operate(flags: NodeFlags, operation: Operation) -> OperateAnswer:
    """Shows meanwhile what the run waits for."""
    shown = ""
    async with local_transport() as transport:
        call = control_caller(transport, choose_node(flags.data, flags.node))

        async def ask() -> OperateAnswer:
            try:
                return await call(OPERATE, OperateRequest(operation, forward=True), OPERATION_MS)
            except EblaError as error:
                return failed_answer(error, operation.id)

        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ask())
            while not (await asyncio.wait([asking], timeout=PROGRESS_S))[0]:
                try:
                    step = (await call(OPERATIONS, OperationsRequest(), CALL_MS)).step or "waits for the leader"
                except EblaError as error:
                    step = error.message
                if step != shown and not flags.as_json:
                    sys.stderr.write(f"ebla: {step} …\n")
                shown = step
    return asking.result()


def failed_answer(error: EblaError, operation: UUID | None) -> OperateAnswer:
    """The node could not be asked, or refused the request itself."""
    code = OperationCode.INVALID if isinstance(error, InvalidRequest) else OperationCode.UNAVAILABLE
    return OperateAnswer(
        operation=operation, code=code, outcome=error.outcome, message=error.message, advice=error.advice
    )


def new_operation_id() -> UUID:
    return uuid.uuid4()


def resolve_host(flags: NodeFlags, text: str) -> HostId:
    """A host by the name of a local node, the address of its control process, its id, or the first digits of that."""
    try:
        report = flags.call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)
    except EblaError as error:
        if error.outcome is Outcome.NOT_APPLIED:
            raise
        # Whatever became of this read, nothing was changed.
        raise Unavailable(error.message, advice=error.advice) from error
    members = {one.member.host: one.member for one in report.members}
    local = {node.name: node.options.control_address for node in find_nodes(flags.data)}
    found = [
        host
        for host, member in members.items()
        if text in (str(host), str(member.address), member.address.host) or local.get(text) == member.address
    ]
    present = [host for host in found if members[host].present] or found
    if not present and len(text) >= PREFIX_DIGITS_MIN:
        alike = (host for host in members if str(host).startswith(text.lower()))
        present = [host for host in alike if members[host].present]
    if len(present) == 1:
        return present[0]
    known = ", ".join(f"{host} ({member.address})" for host, member in sorted(members.items()) if member.present)
    what = "names several hosts" if present else "is no host of this cluster"
    raise InvalidRequest(f"{text!r} {what}", advice=f"its hosts are {known}")

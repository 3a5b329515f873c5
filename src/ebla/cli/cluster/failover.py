"""`ebla failover` and `ebla recover`: take dead nodes out of the quorum, and take them back."""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from ebla.cli.cluster.operations import (
    NOTHING_FAILED,
    answer_json,
    exit_status,
    failed_answer,
    new_operation_id,
    report_answer,
    resolve_host,
    run_operation,
)
from ebla.cli.command import NodeFlags, TableFlags, add_command
from ebla.cli.output import print_json
from ebla.group0.operations import Operation, OperationCode, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.wire.failover_messages import (
    FailoverCheckAnswer,
    FailoverCheckRequest,
    FailoverStatusAnswer,
    FailoverStatusRequest,
)
from ebla.wire.operation_messages import OperateAnswer
from ebla.wire.verbs import FAILOVER_CHECK, FAILOVER_STATUS

CALL_MS = 10_000
Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="HOST…", help="Host ids, addresses, or names of local nodes.")
]

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, is_change=True)
def failover(
    flags: TableFlags,
    hosts: Hosts = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Although voters see the node up, or a table loses its last live replica."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the checks and change nothing.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show excluded nodes and automatic failover.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Let automatic failover act again.")] = False,
) -> int:
    """Exclude dead nodes: nothing waits for them, and they serve no rows until they are recovered."""
    if status or reset:
        if hosts or force or dry_run:
            raise typer.BadParameter("--status and --reset take no HOST, --force or --dry-run")
        return _show_status(flags, reset=reset)
    if not hosts:
        raise typer.BadParameter("name at least one HOST, or use --status or --reset")
    chosen = tuple(dict.fromkeys(resolve_host(flags, one) for one in hosts))
    if dry_run:
        return _dry_run(flags, chosen, force=force)
    with suppress(EblaError):  # what the operation says of the same trouble is better
        for line in _check(flags, chosen).losses:
            sys.stderr.write(f"! {line}\n")
    operation = Operation(
        id=new_operation_id(),
        kind=OperationKind.EXCLUDE,
        hosts=chosen,
        reason="excluded by an operator",
        is_forced=force,
    )
    return run_operation(flags, operation, f"excluded: {', '.join(hosts)}; recover it with: ebla recover HOST")


@add_command(app, is_change=True)
def recover(
    flags: NodeFlags, host: Annotated[str, typer.Argument(help="Its host id, address, or the name of a local node.")]
) -> int:
    """Include an excluded node again: it serves rows, and may vote."""
    operation = Operation(
        id=new_operation_id(),
        kind=OperationKind.INCLUDE,
        hosts=(resolve_host(flags, host),),
        reason="recovered by an operator",
    )
    return run_operation(flags, operation, f"recovered: {host}")


def _dry_run(flags: NodeFlags, hosts: tuple[HostId, ...], *, force: bool) -> int:
    answer = _check(flags, hosts)
    is_met = all(one.is_met or (force and one.can_force) for one in answer.checks)
    verdict = OperateAnswer(operation=None, code=None if is_met else OperationCode.REFUSED)
    if flags.as_json:
        checks = [msgspec.structs.asdict(one) for one in answer.checks]
        print_json(msgspec.to_builtins({**answer_json(verdict), "checks": checks, "losses": answer.losses}))
    else:
        for line in check_lines(answer):
            typer.echo(line)
    return exit_status(verdict)


def _check(flags: NodeFlags, hosts: tuple[HostId, ...]) -> FailoverCheckAnswer:
    return flags.call(FAILOVER_CHECK, FailoverCheckRequest(hosts), CALL_MS)


def check_lines(answer: FailoverCheckAnswer) -> list[str]:
    checks = [f"{'ok' if one.is_met else 'FAIL':<6}{one.text}" for one in answer.checks]
    return [*checks, *(f"!     {line}" for line in answer.losses)]


def _show_status(flags: TableFlags, *, reset: bool) -> int:
    try:
        answer = flags.call(FAILOVER_STATUS, FailoverStatusRequest(reset=reset), CALL_MS)
    except EblaError as error:
        if not reset:
            raise
        return report_answer(flags, failed_answer(error, None), "")
    if flags.as_json:
        fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
        fields["excluded"] = [msgspec.structs.asdict(one) for one in answer.excluded]
        fields["down"] = [msgspec.structs.asdict(one) for one in answer.down]
        print_json(msgspec.to_builtins({**fields, **(answer_json(NOTHING_FAILED) if reset else {})}))
        return 0
    typer.echo(headline(answer))
    if not answer.is_leader:
        typer.echo("no leader is known, so it is not known which nodes are down")
    if answer.excluded:
        names = ("excluded", "host id", "since", "how", "by", "opinions")
        flags.print_records(names, excluded_rows(answer), less_important=("host id", "by"))
    if answer.down:
        rows = [[one.address, str(one.host), one.text, one.why] for one in answer.down]
        flags.print_records(("down", "host id", "automatic failover", "reason"), rows, less_important=("host id",))
    return 0


def headline(answer: FailoverStatusAnswer) -> str:
    count = f"{answer.count} of {answer.max_count} automatic failovers since the last reset"
    if not answer.is_enabled:
        return f"automatic failover is off; {count}"
    return f"automatic failover after {answer.after_ms / 1000:.0f} s; {count}"


def excluded_rows(answer: FailoverStatusAnswer) -> list[list[str]]:
    return [
        [
            one.address,
            str(one.host),
            datetime.fromtimestamp(one.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            ("automatic" if one.is_automatic else "manual") + (", forced" if one.is_forced else ""),
            one.by,
            "; ".join(one.opinions),
        ]
        for one in answer.excluded
    ]

"""`ebla topology`: nodes, the running operation and what it waits for; waiting for a request, and aborting it."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ebla.cli.cluster.node_calls import choose_nodes, control_caller, local_transport, run_async
from ebla.cli.cluster.topology_reports import Display, fetch_report, follow_all, local_names, new_display
from ebla.cli.command import NodeFlags, add_command
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName
from ebla.cli.output import print_json, reporting_outcomes
from ebla.client.request_following import FollowedState, RequestFollower
from ebla.client.topology_view import (
    RequestResult,
    find_request,
    moved_text,
    node_label,
    report_json,
    report_lines,
    row_of,
    short_id,
)
from ebla.model.errors import EblaError, Unavailable, Unreachable
from ebla.model.identity import RequestId
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import RequestOutcome
from ebla.wire.topology_messages import AbortTopologyRequest, TopologyReport
from ebla.wire.verbs import ABORT_REQUEST

HELP = """
The topology: nodes, the operation that runs and what it waits for, the queue, and how the latest requests ended.

  ebla topology                        any node answers, also without a majority
  ebla topology wait 3f2a              until the request has ended
  ebla topology abort 3f2a             withdraw it, and wait until it is rolled back

The exit status is 0 if the request is done, 1 if it failed or was refused, 3 after a timeout while it still runs.
See docs/nodes.md.
"""

app = typer.Typer(name="topology", help=HELP, rich_markup_mode="rich", invoke_without_command=True)

ABORT_MS = 20_000
STILL_RUNNING = 3
INTERRUPTED = 130
"""The exit status of a process that Ctrl-C ended."""
RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The first digits of its id are enough.")]


@app.callback()
def topology(
    context: typer.Context, data: Data = DATA_DEFAULT, node: NodeName = None, as_json: JsonFlag = False
) -> None:
    """Show the topology, or follow or abort one of its requests."""
    if context.invoked_subcommand is not None:
        if (data, node, as_json) != (DATA_DEFAULT, None, False):
            raise typer.BadParameter(f"write the flags after {context.invoked_subcommand}")
        return
    with reporting_outcomes(as_json=as_json, is_change=False):
        report = run_async(fetch_report(data, node))
        names = local_names(data)
        if as_json:
            print_json(report_json(report, names))
        else:
            for line in report_lines(report, names):
                typer.echo(line)


@add_command(app, is_change=False)
def wait(
    flags: NodeFlags,
    request: RequestArgument,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0, help="Seconds; by default without a limit.")
    ] = None,
) -> int:
    """Wait until a request has ended. A change of leader, or of the node that answers, does not matter."""
    report = run_async(fetch_report(flags.data, flags.node))
    found = find_request(report, request)
    follower = FollowedRequest(RequestFollower(found.id, request_label(report, found, flags.data)))
    is_ended = _follow(flags, follower, timeout)
    return show_result(flags, follower.follower.result(), follower.follower.label, is_ended=is_ended)


@add_command(app, is_change=True)
def abort(
    flags: NodeFlags,
    request: RequestArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with the request.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end of the rollback.")] = False,
) -> int:
    """Abort a request: a pending one ends at once, a running one is rolled back."""
    report = run_async(fetch_report(flags.data, flags.node))
    found = find_request(report, request)
    label = request_label(report, found, flags.data)
    if found.is_open:
        found = run_async(_abort(flags, found.id, reason))
    if detach and found.is_open:
        flags.show(
            msgspec.to_builtins(RequestResult(request=str(found.id), outcome=str(found.outcome), error=found.error)),
            f"{label} is rolled back; wait for it with: {wait_command(flags.data, found.id)}",
        )
        return 0
    follower = FollowedRequest(RequestFollower(found.id, label, until_left=True))
    _follow(flags, follower, None)
    result = follower.follower.result()
    aborted = result.outcome == RequestOutcome.FAILED
    flags.show(msgspec.to_builtins(result), f"{label} has ended: {result.error if aborted else result.outcome}")
    return 0 if aborted else 1


@dataclass(slots=True)
class FollowedRequest:
    """A request that exists: any report about it will do."""

    follower: RequestFollower

    @property
    def is_ended(self) -> bool:
        return self.follower.ended is not None

    async def check(self, report: TopologyReport | None, problem: str) -> FollowedState:
        if report is None:
            return FollowedState(label=self.follower.label, state="not known", cause=problem)
        return self.follower.check(report, asyncio.get_running_loop().time())


def request_label(report: TopologyReport, request: NodeRequest, data: Path) -> str:
    row = row_of(report, request.host)
    who = str(request.host) if row is None else node_label(row, local_names(data))
    return f"{request.kind} of {who}, request {short_id(report, request.id)}"


def wait_command(data: Path, request: RequestId | str) -> str:
    return f"ebla topology wait {request}{'' if data == DATA_DEFAULT else f' --data {data}'}"


def show_result(flags: NodeFlags, result: RequestResult, label: str, *, is_ended: bool) -> int:
    """Returns the exit status."""
    if flags.as_json:
        print_json(msgspec.to_builtins(result))
    elif not is_ended:
        sys.stderr.write(f"ebla: {label} still runs; ask again with: {wait_command(flags.data, str(result.request))}\n")
    elif result.outcome == RequestOutcome.DONE:
        took = "" if result.seconds is None else f" after {result.seconds:.1f} s"
        moved = f" ({moved_text(result.bytes, result.ranges)})"
        typer.echo(f"{label} is done{took}{moved}")
    else:
        sys.stderr.write(f"ebla: {label} failed: {result.error}\n")
    if not is_ended:
        return STILL_RUNNING
    return 0 if result.outcome == RequestOutcome.DONE else 1


def _follow(flags: NodeFlags, followed: FollowedRequest, timeout_s: float | None) -> bool:
    display: Display = new_display(quiet=flags.as_json)
    try:
        with display:
            return run_async(follow_all(lambda: fetch_report(flags.data, flags.node), (followed,), display, timeout_s))
    except KeyboardInterrupt:
        sys.stderr.write(f"\nit goes on; {wait_command(flags.data, followed.follower.request)}\n")
        raise typer.Exit(INTERRUPTED) from None


async def _abort(flags: NodeFlags, request: RequestId, reason: str) -> NodeRequest:
    """At the first node that can be reached. Another one is tried only where the request was not sent."""
    problem: EblaError = Unavailable("no node answers")
    async with local_transport() as transport:
        for node in choose_nodes(flags.data, flags.node):
            try:
                answer = await control_caller(transport, node)(
                    ABORT_REQUEST, AbortTopologyRequest(request=request, reason=reason), ABORT_MS
                )
            except Unreachable as error:
                problem = error
            else:
                return answer.request
    raise problem

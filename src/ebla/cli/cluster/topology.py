"""`ebla topology`: nodes, the running operation and what it waits for; waiting for a request, and aborting it."""

from typing import Annotated

import msgspec
import typer

from ebla.cli.cluster.node_calls import run_async
from ebla.cli.cluster.requests import call_first, follow_request, followed_request, show_result
from ebla.cli.cluster.topology_reports import fetch_report, local_names, wait_command
from ebla.cli.command import NodeFlags, add_command
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName
from ebla.cli.output import print_json, reporting_outcomes
from ebla.client.topology_view import RequestResult, find_request, report_json, report_lines
from ebla.topology.states import RequestOutcome
from ebla.wire.topology_messages import AbortTopologyRequest
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
    followed = followed_request(flags, report, found)
    is_ended = follow_request(flags, followed, timeout)
    return show_result(flags, followed, is_ended=is_ended)


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
    followed = followed_request(flags, report, found, until_settled=True)
    label = followed.label
    if found.is_open:
        order = AbortTopologyRequest(request=found.id, reason=reason)
        found = run_async(call_first(flags.data, flags.node, ABORT_REQUEST, order, ABORT_MS)).request
    if detach and found.is_open:
        flags.show(
            msgspec.to_builtins(RequestResult(request=str(found.id), outcome=str(found.outcome), error=found.error)),
            f"{label} is rolled back; wait for it with: {wait_command(flags.data, found.id)}",
        )
        return 0
    follow_request(flags, followed)
    result = followed.result()
    aborted = result.outcome == RequestOutcome.FAILED
    flags.show(msgspec.to_builtins(result), f"{label} has ended: {result.error if aborted else result.outcome}")
    return 0 if aborted else 1

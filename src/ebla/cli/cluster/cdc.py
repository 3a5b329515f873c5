"""`ebla cdc`: the streams of change data capture."""

import sys
import time
import uuid
from datetime import UTC, datetime

import msgspec
import typer

from ebla.cli.cluster.node_calls import run_async
from ebla.cli.cluster.requests import (
    RequestFlags,
    follow_request,
    followed_request,
    show_detached,
    show_result,
    submit_request,
)
from ebla.cli.cluster.topology_reports import fetch_report
from ebla.cli.command import add_command
from ebla.cli.output import print_json
from ebla.model.identity import HostId, RequestId
from ebla.topology.snapshot import GenerationId, GlobalRequest
from ebla.topology.states import GlobalRequestKind, RequestOutcome

HELP = """
Change data capture: its streams.

  ebla cdc check-and-repair            make a new generation of streams if the newest does not fit the ring
"""

app = typer.Typer(name="cdc", help=HELP, rich_markup_mode="rich", no_args_is_help=True)


@app.callback()
def cdc() -> None:
    """So that a single command is a group too."""


@add_command(app, "check-and-repair", is_change=True)
def check_and_repair(flags: RequestFlags) -> int:
    """Compare the newest generation of streams with the ring, and commit a new one if they differ.

    It waits until no node operation runs or can run.
    """
    report = run_async(fetch_report(flags.data, flags.node))
    stored = submit_request(flags, _new_request(report.host))
    if flags.detach:
        return show_detached(flags, stored)
    followed = followed_request(flags, report, stored)
    if not flags.as_json:
        sys.stderr.write(f"{followed.label}\n")
    follow_request(flags, followed)
    result, ended = followed.result(), followed.follower.ended
    if result.outcome != RequestOutcome.DONE or not isinstance(ended, GlobalRequest):
        return show_result(flags, followed)
    timestamp_ms = None if ended.generation is None else _timestamp_ms(flags, ended.generation)
    if flags.as_json:
        generation = None if ended.generation is None else str(ended.generation)
        print_json({**msgspec.to_builtins(result), "generation": generation, "timestamp_ms": timestamp_ms})
    elif ended.generation is None:
        typer.echo("nothing to do")
    else:
        typer.echo(f"generation {ended.generation} takes effect {_moment(timestamp_ms)}")
    return 0


def _new_request(initiator: HostId) -> GlobalRequest:
    """The node that stores it sets initiator and time again."""
    return GlobalRequest(
        id=RequestId(uuid.uuid4()),
        kind=GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS,
        initiator=initiator,
        start_ms=time.time_ns() // 1_000_000,
    )


def _timestamp_ms(flags: RequestFlags, generation: GenerationId) -> int | None:
    """None: it is not kept any more."""
    found = flags.snapshot().cdc_generations.get(generation)
    return None if found is None else found.timestamp_ms


def _moment(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return "at a time that is not known any more"
    return f"at {datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"

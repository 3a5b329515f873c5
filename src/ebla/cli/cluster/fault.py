"""`ebla fault …`: stops, fails or kills a node at named points, for tests."""

from typing import Annotated

import typer

from ebla.cli.command import NodeFlags, add_command
from ebla.cli.output import print_records
from ebla.wire.fault_messages import FaultAction, FaultKind, FaultRequest
from ebla.wire.verbs import FAULT

HELP = """
Fault points, for tests: a node started with `fault_points = true` stops, fails or dies at a named point.

  ebla fault list                               the points, and what is set
  ebla fault set purge.pushed pause --once      the next one that comes by waits there, at most 10 min
  ebla fault release purge.pushed               it continues
  ebla fault clear                              unset all points
"""

app = typer.Typer(name="fault", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

TIMEOUT_MS = 5_000
PointName = Annotated[str, typer.Argument(metavar="NAME", help="See ebla fault list.")]


@add_command(app, "list", is_change=False)
def list_points(flags: NodeFlags) -> None:
    """List the fault points of a node."""
    _call(flags, FaultRequest(action=FaultAction.LIST))


@add_command(app, "set", is_change=True)
def set_point(
    flags: NodeFlags,
    name: PointName,
    kind: Annotated[FaultKind, typer.Argument(metavar="KIND", help="pause, fail or crash.")],
    once: Annotated[bool, typer.Option("--once", help="Only the first time that it is reached.")] = False,
) -> None:
    """Set what happens at a point, on one node."""
    _call(flags, FaultRequest(action=FaultAction.SET, name=name, kind=kind, once=once))


@add_command(app, is_change=True)
def release(flags: NodeFlags, name: PointName) -> None:
    """Unset a point, and let what waits there go on."""
    _call(flags, FaultRequest(action=FaultAction.RELEASE, name=name))


@add_command(app, is_change=True)
def clear(flags: NodeFlags) -> None:
    """Unset all points, and let what waits there go on."""
    _call(flags, FaultRequest(action=FaultAction.CLEAR))


def _call(flags: NodeFlags, request: FaultRequest) -> None:
    points = flags.call(FAULT, request, TIMEOUT_MS).points
    rows = [(one.name, one.kind, one.once, one.waiting, one.reached) for one in points]
    print_records(("name", "kind", "once", "waiting", "reached"), rows, as_json=flags.as_json, missing="-")

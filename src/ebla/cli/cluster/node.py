"""`ebla node` and `ebla demo`: processes of their own, which need nothing of the command line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebla.options import replace_overrides

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command()
def node(
    options: Annotated[Path, typer.Option("--options", metavar="FILE", help="The node's options file (TOML).")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option that overrides the file.")
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            "--join", metavar="TOKEN", help="For the first start: a join token of the cluster (see `ebla token`)."
        ),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option("--replace", metavar="HOST", help="For the first start: the dead node that this one replaces."),
    ] = None,
    ignore_dead: Annotated[
        list[str] | None,
        typer.Option("--ignore-dead", metavar="HOST", help="With --replace: another dead node. May be repeated."),
    ] = None,
) -> None:
    """Run one node in the foreground, as a service would.

    SIGTERM or Ctrl-C stops it; SIGHUP reloads its certificates.
    """
    if ignore_dead and replace is None:
        raise typer.BadParameter("--ignore-dead goes with --replace")
    replacing = () if replace is None else replace_overrides(replace, ignore_dead or ())
    flags = [flag for override in (*(overrides or ()), *replacing) for flag in ("--set", override)]
    flags += [] if join is None else ["--join", join]
    # Becomes `python -m ebla.node`, so that a supervisor watches and signals the node itself.
    arguments = [sys.executable, "-m", "ebla.node", "control", "--options", str(options), *flags]
    os.execv(sys.executable, arguments)  # noqa: S606  # the arguments are our own


@app.command()
def demo(
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Each seed is a different run.")] = 7,
) -> None:
    """Run a simulated cluster under faults and narrate it. The same seed gives the same run."""
    arguments = ["-m", "ebla.sim", "--scenario", "register", "--seed", str(seed), "--narrate"]
    raise typer.Exit(subprocess.run([sys.executable, *arguments], check=False).returncode)  # noqa: S603  # our own

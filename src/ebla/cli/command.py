"""Commands with shared flags: the first parameter of a command is a dataclass, and its fields are flags of the command.

So a flag that several commands have, what is done with it, and the reporting of errors are written once.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import typer

from ebla.cli.cluster.node_calls import call_node, read_snapshot
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName, VerboseFlag
from ebla.cli.output import print_json, print_records, reporting_outcomes
from ebla.topology.snapshot import Snapshot
from ebla.wire.verbs import A, Q, Verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputFlags:
    as_json: JsonFlag = False

    def show(self, value: object, text: str) -> None:
        """The value for programs, or else the text."""
        if self.as_json:
            print_json(value)
        else:
            typer.echo(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeFlags(OutputFlags):
    data: Data = DATA_DEFAULT
    node: NodeName = None

    def call(self, verb: Verb[Q, A], request: Q, timeout_ms: int) -> A:
        """Calls the control process of the node."""
        return call_node(self.data, self.node, verb, request, timeout_ms)

    def snapshot(self) -> Snapshot:
        return read_snapshot(self.data, self.node)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFlags(NodeFlags):
    verbose: VerboseFlag = False

    def print_records(
        self,
        names: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        missing: str = "",
        less_important: Sequence[str] = (),
    ) -> None:
        """With --verbose, no column is left out in a narrow terminal."""
        narrow = () if self.verbose else less_important
        print_records(names, rows, as_json=self.as_json, missing=missing, less_important=narrow)


F = TypeVar("F", bound=OutputFlags)
P = ParamSpec("P")
CommandFunction = Callable[Concatenate[F, P], int | None]
"""Returns the exit status; None is 0."""


def add_command(
    app: typer.Typer, name: str | None = None, *, is_change: bool
) -> Callable[[CommandFunction[F, P]], CommandFunction[F, P]]:
    """`is_change`: an error is reported with the outcome of the operation."""

    def add(function: CommandFunction[F, P]) -> CommandFunction[F, P]:
        first, *own = inspect.signature(function).parameters.values()
        shared = list(inspect.signature(first.annotation).parameters.values())
        shared.sort(key=lambda flag: flag.name == "as_json")  # help lists it last
        names = [flag.name for flag in shared]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            flags = first.annotation(**{name: values.pop(name) for name in names})
            with reporting_outcomes(as_json=flags.as_json, is_change=is_change):
                status = function(flags, **values)  # type: ignore[call-arg]  # Typer calls it by the signature below
            raise typer.Exit(status or 0)

        flags_of_command = [flag.replace(kind=inspect.Parameter.KEYWORD_ONLY) for flag in (*own, *shared)]
        run.__signature__ = inspect.Signature(flags_of_command)  # type: ignore[attr-defined]  # what Typer reads
        app.command(name)(run)
        return function

    return add

"""Flags and arguments that several commands share."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ebla.model.errors import InvalidRequest

DATA_DEFAULT = Path("data")
PASSWORD_VARIABLE = "EBLA_PASSWORD"  # noqa: S105  # the name of a variable

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder with one folder per node.")]
NodeName = Annotated[
    str | None, typer.Option("--node", metavar="NAME", help="Ask this node; by default the first one that runs.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TableArgument = Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE")]
ContactFlag = Annotated[
    str | None,
    typer.Option(
        "--contact",
        metavar="ADDRESS[:PORT][,…]",
        help="CQL addresses of a cluster elsewhere; by default the nodes of --data.",
    ),
]
UserFlag = Annotated[
    str | None,
    typer.Option("--username", metavar="NAME", help=f"Log in as this user. Set {PASSWORD_VARIABLE} to avoid a prompt."),
]
AuthorityFlag = Annotated[
    Path | None,
    typer.Option(
        "--tls-authority", metavar="FILE", help="With --contact: use TLS, and trust certificates of this authority."
    ),
]


def split_table_name(text: str) -> tuple[str, str]:
    keyspace, dot, name = text.partition(".")
    if not (keyspace and dot and name):
        raise InvalidRequest(f"{text!r} is no table's name", advice="write it as KEYSPACE.TABLE")
    return keyspace, name


def read_password() -> str:
    found = os.environ.get(PASSWORD_VARIABLE)
    return found if found is not None else str(typer.prompt("password", hide_input=True, err=True))

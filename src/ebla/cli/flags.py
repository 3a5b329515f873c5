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
VerboseFlag = Annotated[bool, typer.Option("--verbose", help="Print everything, however wide.")]
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
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Read the password from the first line of a file."),
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


def given_password(file: Path | None) -> str | None:
    """From the file or the environment, and never from an argument: other users can see arguments."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE)
    try:
        return file.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the password file cannot be read: {error}") from None


def read_password(file: Path | None = None, *, confirm: bool = False) -> str:
    """Prompts on standard error where no password is given: standard output may go into a file or a variable."""
    found = given_password(file)
    if found is not None:
        return found
    return str(typer.prompt("password", hide_input=True, confirmation_prompt=confirm, err=True))


def environment_without_password() -> dict[str, str]:
    """For a process that replaces this one: everything that it starts could read its environment."""
    return {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}


def private_file(content: str) -> str:
    """The path of a file in memory, for a process that replaces this one. Its owner alone can open it, it is on no
    disk, and it is gone with the processes that have it open."""
    descriptor = os.memfd_create("ebla", 0)
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(content)
    return f"/dev/fd/{descriptor}"

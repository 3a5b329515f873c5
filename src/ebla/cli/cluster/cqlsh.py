"""`ebla cqlsh`: Cassandra's shell with a cluster of this machine, installed at the first use.

It has an environment of its own: it needs cassandra-driver, and Ebla needs scylla-driver, and both install a package
named `cassandra`.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.cli.cluster.node_calls import choose_node
from ebla.cli.flags import (
    DATA_DEFAULT,
    PASSWORD_VARIABLE,
    Data,
    PasswordFile,
    environment_without_password,
    given_password,
    private_file,
)
from ebla.cli.output import reporting_errors
from ebla.model.errors import InvalidRequest, Unavailable
from ebla.options import ClientTls

RunStep = Callable[[Sequence[str]], int]
PrintLine = Callable[[str], None]

MARKER = ".ready"
HASHED = ("--require-hashes", "--only-binary", ":all:", "--no-deps")
_PASSWORD_ARGUMENT = re.compile(r"-[A-Z]*p|--pa")
"""Also abbreviated, and behind flags in one word."""

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command("cqlsh", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def cqlsh_command(
    context: typer.Context,
    data: Data = DATA_DEFAULT,
    environment: Annotated[
        Path | None,
        typer.Option("--environment", metavar="DIR", help="Where cqlsh is installed; by default in the user's cache."),
    ] = None,
    password_file: PasswordFile = None,
) -> None:
    """Start cqlsh with a node of this machine. It is installed at the first use.

    All other arguments are passed to cqlsh: ebla cqlsh -u admin -e "SELECT * FROM system.local"
    The password of a user comes from a prompt, from EBLA_PASSWORD or from a file.
    """
    with reporting_errors():
        login = login_arguments(context.args, given_password(password_file))
        running = choose_node(data, None)
        print_line = Console(stderr=True, highlight=False, markup=False).print
        python = ensure_installed(environment or default_environment(), run_step, print_line)
        exec_cqlsh(python, running, [*context.args, *login])


def requirements() -> str:
    return resources.files("ebla.cli").joinpath("cqlsh_environment.txt").read_text("utf-8")


def default_environment() -> Path:
    """In the user's cache. The name depends on the content, so another version uses another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "ebla" / f"cqlsh-{hashlib.sha256(requirements().encode()).hexdigest()[:12]}-py{version}"


def ensure_installed(environment: Path, run: RunStep, print_line: PrintLine) -> Path:
    """The interpreter of the environment. An incomplete environment has no marker file, and is created again."""
    python, mark = environment / "bin" / "python", environment / MARKER
    if mark.exists():
        return python
    print_line(f"installing cqlsh into {environment}, once …")
    environment.mkdir(parents=True, exist_ok=True)
    requirements_file = environment / "requirements.txt"
    requirements_file.write_text(requirements(), "utf-8")
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    for step in (
        (sys.executable, "-m", "venv", str(environment)),
        (*pip, "install", "-q", "--progress-bar", "on", *HASHED, "-r", str(requirements_file)),
    ):
        if run(step):
            raise Unavailable(
                "cqlsh could not be installed; see the messages above",
                advice="any cqlsh of Cassandra 4 or newer will do as well: cqlsh ADDRESS",
            )
    mark.touch()
    return python


def arguments_for(node: LocalNode, user_arguments: Sequence[str]) -> list[str]:
    """The user's arguments, with the node's address, and TLS if the node requires it."""
    options = node.options
    arguments = list(user_arguments)
    if options.client_tls is ClientTls.ON and "--ssl" not in arguments:
        arguments.append("--ssl")
    return [*arguments, options.address, str(options.ports.cql)]


def login_arguments(user_arguments: Sequence[str], password: str | None) -> list[str]:
    """Arguments that log in with this password; without one cqlsh prompts for it. Raises `InvalidRequest` for a
    password among the arguments, which other users of the machine can see."""
    if any(_PASSWORD_ARGUMENT.match(argument) for argument in user_arguments):
        raise InvalidRequest(
            "a password is not accepted as an argument, because other users can see it",
            advice=f"leave out -p to be asked for it, or use {PASSWORD_VARIABLE} or --password-file FILE",
        )
    if password is None or not any(argument.startswith(("-u", "--username")) for argument in user_arguments):
        return []
    if password != password.strip() or not password.isprintable():
        raise InvalidRequest(
            "cqlsh's credentials file cannot hold this password", advice="leave the password out to be asked for it"
        )
    return ["--credentials", private_file(f"[plain_text_auth]\npassword = {password}\n")]


def cqlsh_process_environment(node: LocalNode) -> dict[str, str]:
    """Environment variables for cqlsh: the certificate authority of the nodes."""
    if node.options.client_tls is ClientTls.OFF:
        return {}
    return {"SSL_CERTFILE": str(node.folder.tls / "authority.pem"), "SSL_VALIDATE": "true"}


def run_step(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode  # noqa: S603  # the arguments are our own


def exec_cqlsh(python: Path, node: LocalNode, user_arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by cqlsh, which then owns the terminal and its signals."""
    command = [str(python), "-m", "cqlshlib", *arguments_for(node, user_arguments)]
    os.execve(command[0], command, {**environment_without_password(), **cqlsh_process_environment(node)})  # noqa: S606  # the arguments are our own

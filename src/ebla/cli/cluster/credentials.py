"""`ebla token`, `ebla renew` and `ebla hash-password`: join tokens, new certificates, hashes for the options."""

import sys
from typing import Annotated

import typer

from ebla.cli.cluster.local_cluster import renew_certificates, require_nodes
from ebla.cli.flags import DATA_DEFAULT, Data, PasswordFile, read_password
from ebla.cli.output import reporting_errors
from ebla.cql.authentication import hash_password
from ebla.model.errors import InvalidRequest
from ebla.runtime.authority_handover import new_join_token
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tls import TlsFolder

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command()
def token(
    data: Data = DATA_DEFAULT,
    minutes: Annotated[
        int, typer.Option("--minutes", metavar="N", min=1, max=10_080, help="How long it is valid.")
    ] = 60,
) -> None:
    """Create a join token. With it, a node on another machine receives the cluster's certificate authority.

    Anyone who has the token can join a node until it expires. On the new machine: ebla node --options FILE --join TOKEN
    """
    with reporting_errors():
        member = next((each for each in require_nodes(data) if each.folder.read_identity() is not None), None)
        if member is None:
            raise InvalidRequest(f"no node in {data} was ever started", advice="start them first (`ebla up`)")
        authority = TlsFolder(member.folder.tls).authority()
        made = new_join_token(authority, minutes * 60, SystemClock(), SystemRng())
        sys.stdout.write(f"{made}\n")


@app.command()
def renew(data: Data = DATA_DEFAULT) -> None:
    """Renew the certificates of the nodes of this machine. Running nodes use them for new connections at once."""
    with reporting_errors():
        for each in renew_certificates(require_nodes(data), SystemClock()):
            state = "not running" if each.signalled_pid is None else f"signalled process {each.signalled_pid}"
            sys.stdout.write(f"{each.name}  renewed  {state}\n")


@app.command("hash-password")
def hash_password_command(password_file: PasswordFile = None) -> None:
    """Print the hash of a password, for `superuser_password_hash` in the options of the nodes.

    The password comes from a prompt, from EBLA_PASSWORD or from a file.
    """
    with reporting_errors():
        sys.stdout.write(f"{hash_password(read_password(password_file, confirm=True), SystemRng())}\n")

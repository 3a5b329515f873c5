"""`ebla hash-password`."""

import sys

import typer

from ebla.cli.flags import PasswordFile, read_password
from ebla.cli.output import reporting_errors
from ebla.cql.authentication import hash_password
from ebla.runtime.system_rng import SystemRng

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command("hash-password")
def hash_password_command(password_file: PasswordFile = None) -> None:
    """Print the hash of a password, for `superuser_password_hash` in the options of the nodes.

    The password comes from a prompt, from EBLA_PASSWORD or from a file.
    """
    with reporting_errors():
        sys.stdout.write(f"{hash_password(read_password(password_file, confirm=True), SystemRng())}\n")

"""`ebla spark`: a PySpark shell with the tables of a cluster."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ebla.cli.flags import (
    DATA_DEFAULT,
    AuthorityFlag,
    ContactFlag,
    Data,
    JsonFlag,
    PasswordFile,
    UserFlag,
    private_file,
)
from ebla.cli.output import print_json, reporting_errors
from ebla.cli.spark_jobs.source_options import ClusterFlags, source_options
from ebla.cli.spark_jobs.user_spark import (
    MASTER_DEFAULT,
    ConfFlag,
    MasterFlag,
    UserSpark,
    spark_process_environment,
)
from ebla.pipeline.java import default_archive_folder

OPTIONS_VARIABLE = "EBLA_SPARK_OPTIONS"
"""The path of a private file. The options have the password, and every child of the shell has its environment."""
STARTUP = f"""\
# Written by `ebla spark`; the PySpark shell runs it.
import json, os

with open(os.environ["{OPTIONS_VARIABLE}"]) as options_file:
    cluster = json.load(options_file)


def table(name, **options):
    '''A table of the cluster, as in table("shop.orders").'''
    return spark.read.format("ebla").options(**{{**cluster, **options}}).load(name)


print('table("keyspace.name") is a DataFrame; .options(**cluster) is for readers and writers of format("ebla")')
"""
SECRET = ("password",)

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def spark(
    context: typer.Context,
    master: MasterFlag = MASTER_DEFAULT,
    conf: ConfFlag = None,
    print_conf: Annotated[
        bool, typer.Option("--print-conf", help="Print the settings, for a notebook or spark-defaults.conf.")
    ] = False,
    data: Data = DATA_DEFAULT,
    contact: ContactFlag = None,
    username: UserFlag = None,
    password_file: PasswordFile = None,
    tls_authority: AuthorityFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Open a PySpark shell with the tables of a cluster.

    In it, table("shop.orders") is a DataFrame, and `cluster` has the options for readers and writers:
    df.write.format("ebla").options(**cluster).mode("append").save("shop.orders")

    All other arguments are passed to pyspark: ebla spark -- --packages …
    """
    with reporting_errors():
        flags = ClusterFlags(
            master=master,
            conf=conf,
            data=data,
            contact=contact,
            username=username,
            password_file=password_file,
            tls_authority=tls_authority,
        )
        options, found = source_options(flags), flags.user_spark()
        if print_conf:
            print_settings(found, options, as_json=as_json)
            return
        exec_pyspark(found, options, context.args)


def print_settings(found: UserSpark, options: Mapping[str, str], *, as_json: bool) -> None:
    public_options = {name: value for name, value in options.items() if name not in SECRET}
    if as_json:
        print_json(
            {"settings": dict(found.settings), "environment": dict(found.environment), "options": public_options}
        )
        return
    for name, value in found.environment.items():
        typer.echo(f"export {name}={value}")
    for name, value in found.settings.items():
        typer.echo(f"{name} {value}")
    for name, value in public_options.items():
        typer.echo(f"# .option({json.dumps(name)}, {json.dumps(value)})")


def shell_command(found: UserSpark, user_arguments: Sequence[str]) -> list[str]:
    """User arguments win: Spark uses the last value of a setting."""
    settings = [flag for name, value in found.settings.items() for flag in ("--conf", f"{name}={value}")]
    return [str(found.home / "bin" / "pyspark"), *settings, *user_arguments]


def exec_pyspark(found: UserSpark, options: Mapping[str, str], user_arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by the shell, which then owns the terminal and its signals."""
    startup = _startup_file()
    environment = {
        **spark_process_environment(found),
        OPTIONS_VARIABLE: private_file(json.dumps(dict(options))),
        "PYTHONSTARTUP": str(startup),
    }
    command = shell_command(found, user_arguments)
    os.execve(command[0], command, environment)  # noqa: S606  # the arguments are our own and the user's


def _startup_file() -> Path:
    """The shell runs it once it has its session."""
    folder = default_archive_folder(os.environ)
    assert folder is not None
    path = folder.parent / "spark-shell.py"
    path.write_text(STARTUP)
    return path

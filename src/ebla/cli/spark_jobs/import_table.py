"""`ebla import`: rows of files into a table, by Spark."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.error_reporting import reporting_errors, reporting_outcomes
from ebla.cli.flags import DATA_DEFAULT, AuthorityFlag, ContactFlag, Data, JsonFlag, TableArgument, UserFlag
from ebla.cli.spark_jobs.export import ConsistencyFlag
from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.job_spec import ImportSpec, exec_spark_job
from ebla.cli.spark_jobs.source_options import ClusterFlags, describe, source_options
from ebla.cli.spark_jobs.user_spark import MASTER_DEFAULT, ConfFlag, MasterFlag, user_spark

app = typer.Typer()
"""Without a name: its command stands among those of whoever takes it in."""


@app.command("import")
def import_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="With Parquet or CSV files, in folders below it too.")],
    table: TableArgument,
    kind: Annotated[FileKind | None, typer.Option("--format", help="If not given: that of the files there.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAME,…", help="Only these; all of the files if not given.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Begin anew, whatever was imported from here before.")] = False,
    consistency: ConsistencyFlag = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="How long the rows stay, as in 90d.")] = None,
    nulls: Annotated[
        str | None,
        typer.Option("--nulls", metavar="unset|delete", help="What a null does; unset leaves what is there."),
    ] = None,
    master: MasterFlag = MASTER_DEFAULT,
    conf: ConfFlag = None,
    data: Data = DATA_DEFAULT,
    contact: ContactFlag = None,
    username: UserFlag = None,
    tls_authority: AuthorityFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the rows of a folder of Parquet or CSV files into a table, by Spark jobs.

    Columns are matched by name; a row that is there already is written over. Interrupted, the same command goes on
    where it was: a file beside the folder keeps the import's name, and the cluster knows which of its jobs are done.
    """
    with reporting_errors(), reporting_outcomes(as_json=as_json):
        options = source_options(ClusterFlags(data=data, contact=contact, username=username, authority=tls_authority))
        chosen = {"consistency": consistency, "ttl": ttl, "nulls": nulls}
        describe(options, table)
        spark = user_spark(master, conf or (), os.environ, sys.executable)
        spec = ImportSpec(
            options=options | {name: value for name, value in chosen.items() if value is not None},
            settings=spark.settings,
            table=table,
            folder=str(folder.absolute()),
            kind=kind,
            columns=tuple(name.strip() for name in (columns or "").split(",") if name.strip()),
            again=again,
            as_json=as_json,
        )
        exec_spark_job("ebla.cli.spark_jobs.import_job", spec, spark)

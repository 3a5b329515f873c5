"""`ebla export`: a table as files, by Spark."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.error_reporting import reporting_errors, reporting_outcomes
from ebla.cli.flags import DATA_DEFAULT, AuthorityFlag, ContactFlag, Data, JsonFlag, TableArgument, UserFlag
from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.job_spec import ExportSpec, exec_spark_job
from ebla.cli.spark_jobs.source_options import ClusterFlags, describe, source_options
from ebla.cli.spark_jobs.user_spark import MASTER_DEFAULT, ConfFlag, MasterFlag, user_spark

app = typer.Typer()
"""Without a name: its command stands among those of whoever takes it in."""

ConsistencyFlag = Annotated[
    str | None,
    typer.Option("--consistency", metavar="LEVEL", help="How many replicas count; LOCAL_QUORUM if not given."),
]


@app.command()
def export(
    table: TableArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.")],
    kind: Annotated[
        FileKind, typer.Option("--format", help="CSV has a header; nulls are empty fields.")
    ] = FileKind.PARQUET,
    consistency: ConsistencyFlag = None,
    pieces: Annotated[
        int | None,
        typer.Option("--pieces", metavar="N", min=1, max=1_000, help="What is kept of an export that is interrupted."),
    ] = None,
    master: MasterFlag = MASTER_DEFAULT,
    conf: ConfFlag = None,
    data: Data = DATA_DEFAULT,
    contact: ContactFlag = None,
    username: UserFlag = None,
    tls_authority: AuthorityFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write all rows of a table to a folder of Parquet or CSV files, by Spark jobs.

    Interrupted, the same command goes on where it was: a file in the folder tells which ranges of tokens are done.
    Each range is read as it stands when its turn comes; every write that was acknowledged before the start is in.
    """
    with reporting_errors(), reporting_outcomes(as_json=as_json, is_change=False):
        options = source_options(ClusterFlags(data=data, contact=contact, username=username, authority=tls_authority))
        if consistency is not None:
            options["consistency"] = consistency
        describe(options, table)
        spark = user_spark(master, conf or (), os.environ, sys.executable)
        spec = ExportSpec(
            options=options,
            settings=spark.settings,
            table=table,
            folder=str(folder.absolute()),
            kind=kind,
            pieces=pieces,
            as_json=as_json,
        )
        exec_spark_job("ebla.cli.spark_jobs.export_job", spec, spark)

"""`ebla export` and `ebla import`: a table to files and back, by Spark jobs in a process of their own."""

from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.command import add_command
from ebla.cli.flags import TableArgument
from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.job_spec import ExportSpec, ImportSpec, exec_spark_job
from ebla.cli.spark_jobs.source_options import ClusterFlags, describe, source_options

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""

ConsistencyFlag = Annotated[
    str | None, typer.Option("--consistency", metavar="LEVEL", help="Consistency level; by default LOCAL_QUORUM.")
]


@add_command(app, is_change=False)
def export(
    flags: ClusterFlags,
    table: TableArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Created if it does not exist.")],
    kind: Annotated[
        FileKind, typer.Option("--format", help="CSV has a header; nulls are empty fields.")
    ] = FileKind.PARQUET,
    consistency: ConsistencyFlag = None,
    pieces: Annotated[
        int | None,
        typer.Option(
            "--pieces", metavar="N", min=1, max=1_000, help="An interrupted export keeps its finished pieces."
        ),
    ] = None,
) -> None:
    """Write all rows of a table to a folder of Parquet or CSV files, by Spark jobs.

    If it is interrupted, run the same command again to resume: a file in the folder lists the finished token ranges.
    Each range is read at the time of its own job. Every write acknowledged before the start is included.
    """
    options = source_options(flags)
    if consistency is not None:
        options["consistency"] = consistency
    describe(options, table)
    spark = flags.user_spark()
    spec = ExportSpec(
        options=options,
        settings=spark.settings,
        table=table,
        folder=str(folder.absolute()),
        kind=kind,
        pieces=pieces,
        as_json=flags.as_json,
    )
    exec_spark_job("ebla.cli.spark_jobs.export_job", spec, spark)


@add_command(app, "import", is_change=True)
def import_command(
    flags: ClusterFlags,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Parquet or CSV files, also in sub-folders.")],
    table: TableArgument,
    kind: Annotated[FileKind | None, typer.Option("--format", help="By default the format of the files.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAME,…", help="Only these columns; by default all.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over, even if this folder was imported before.")
    ] = False,
    consistency: ConsistencyFlag = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="TTL of the rows, as in 90d.")] = None,
    nulls: Annotated[
        str | None,
        typer.Option("--nulls", metavar="unset|delete", help="A null keeps the value there (unset) or deletes it."),
    ] = None,
) -> None:
    """Write the rows of a folder of Parquet or CSV files into a table, by Spark jobs.

    Columns are matched by name; existing rows are overwritten. If it is interrupted, run the same command again to
    resume: a file beside the folder has the id of the import, and the cluster knows which of its jobs are done.
    """
    options = source_options(flags)
    write_options = {"consistency": consistency, "ttl": ttl, "nulls": nulls}
    describe(options, table)
    spark = flags.user_spark()
    spec = ImportSpec(
        options=options | {name: value for name, value in write_options.items() if value is not None},
        settings=spark.settings,
        table=table,
        folder=str(folder.absolute()),
        kind=kind,
        columns=tuple(name.strip() for name in (columns or "").split(",") if name.strip()),
        again=again,
        as_json=flags.as_json,
    )
    exec_spark_job("ebla.cli.spark_jobs.import_job", spec, spark)

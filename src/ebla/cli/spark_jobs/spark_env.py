"""`ebla spark-env`: the packages that tasks need, as an archive for executors that do not have them."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.error_reporting import reporting_errors
from ebla.cli.flags import JsonFlag
from ebla.cli.jobs.job_output import format_bytes
from ebla.cli.output import print_json
from ebla.cli.spark_jobs.environment_pack import PYTHON, VERSION, pack

FOLDER = "environment"
"""How executors call the folder that they unpack it to."""

app = typer.Typer()
"""Without a name: its command stands among those of whoever takes it in."""


@app.command("spark-env")
def spark_env(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to make.")] = Path("ebla-spark-env.tar.gz"),
    as_json: JsonFlag = False,
) -> None:
    """Pack what tasks of Spark need into an archive: pyarrow, pandas, numpy, msgspec, Ebla, and what those need.

    Spark brings it to its executors and unpacks it there; they need nothing but a Python of this version.
    """
    with reporting_errors():
        names = pack(file)
        settings, environment = settings_for(file), environment_for(sys.executable)
        size_bytes = file.stat().st_size
        if as_json:
            told = {"settings": settings, "environment": environment}
            print_json({"file": str(file), "bytes": size_bytes, "packages": names, **told})
            return
        typer.echo(f"{file}: {format_bytes(size_bytes)}, with {', '.join(names)}")
        typer.echo(f"executors need Python {VERSION} and nothing else; before Spark is started:")
        for name, value in environment.items():
            typer.echo(f"  export {name}={shlex.quote(value)}")
        for name, value in settings.items():
            typer.echo(f"  spark-submit --conf {shlex.quote(f'{name}={value}')} …")


def settings_for(file: Path) -> dict[str, str]:
    return {"spark.archives": f"{file.absolute()}#{FOLDER}"}


def environment_for(driver: str) -> dict[str, str]:
    """Not as settings of Spark: those are read by `spark-submit` alone, and queries are planned by the driver's Python,
    which Spark takes from here. The driver keeps its own; only tasks run on the one that was unpacked."""
    return {"PYSPARK_DRIVER_PYTHON": driver, "PYSPARK_PYTHON": f"./{FOLDER}/{PYTHON}"}

"""`ebla spark-env`: the packages that tasks need, as an archive for executors that do not have them."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.environment_pack import PYTHON, pack
from ebla.cli.shown_jobs import size_words
from ebla.cli.shown_rows import print_json
from ebla.cli.table import JsonFlag
from ebla.cli.telling import errors_told

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
    with errors_told():
        names = pack(file)
        settings = settings_for(file)
        if as_json:
            print_json({"file": str(file), "bytes": file.stat().st_size, "packages": names, "settings": settings})
            return
        typer.echo(f"{file}: {size_words(file.stat().st_size)}, with {', '.join(names)}")
        typer.echo(
            f"executors need Python {sys.version_info.major}.{sys.version_info.minor} and nothing else; tell Spark:"
        )
        for name, value in settings.items():
            typer.echo(f"  --conf {shlex.quote(f'{name}={value}')}")


def settings_for(file: Path) -> dict[str, str]:
    """The driver keeps its own Python: only tasks run in the one that was unpacked."""
    driver = os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable
    return {
        "spark.archives": f"{file.absolute()}#{FOLDER}",
        "spark.pyspark.python": f"./{FOLDER}/{PYTHON}",
        "spark.pyspark.driver.python": driver,
    }

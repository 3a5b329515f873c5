"""Our code on executors that are not ours: a zip of this package, which Spark puts on their path.

It is plain Python; what is compiled (pyarrow, numpy, msgspec and what Spark itself needs) must be installed there. The
first task on a new session imports all that later ones do, so a package that is missing is found out before any work.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import ebla
from ebla.pipeline.attempts import prepare_worker
from ebla.pipeline.file_task import MoveFiles
from ebla.pipeline.hash_plan import ReadHashes
from ebla.pipeline.row_task import MoveRows
from ebla.pipeline.task_outcome import failure_in, missing_package
from ebla.ports.transfers import PipelineUnavailable

PACKAGES = "pyarrow 'pandas<3' numpy msgspec"

TASKS = (MoveFiles, MoveRows, ReadHashes)
"""What is run out there. Whoever imports this module has all that they need, or is told what is missing."""


def make_zip(folder: Path) -> Path:
    """Of the installed package, whatever way it is installed."""
    root = Path(next(iter(ebla.__path__)))
    made = folder / "ebla.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("ebla", path.relative_to(root)))
    return made


def ship(spark: SparkSession, folder: Path) -> None:
    spark.addArtifacts(str(make_zip(folder)), pyfile=True)


def look_around(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first task of a worker: by the time it runs, everything is imported."""
    prepare_worker()
    yield from batches


def warm_up(spark: SparkSession) -> None:
    """A first job, so that the first real one finds workers that have loaded everything. Raises
    `PipelineUnavailable`."""
    slots = spark.sparkContext.defaultParallelism
    try:
        spark.range(0, slots, 1, slots).mapInArrow(look_around, "id bigint").collect()
    except PySparkException as error:
        text = str(error)
        package = missing_package(text)
        if package:
            raise PipelineUnavailable(
                f"the Python of Spark's executors lacks the package {package}",
                advice=f"install there what tasks need: pip install {PACKAGES}",
            ) from error
        raise PipelineUnavailable(f"Spark cannot run Python tasks: {failure_in(text).message}") from error

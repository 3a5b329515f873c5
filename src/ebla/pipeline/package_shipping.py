"""Our code on executors that are not ours: a zip of this package, which Spark puts on their path.

It is plain Python; what is compiled (pyarrow, numpy, msgspec and what Spark itself needs) must be installed there. The
first task on a new session imports all that later ones do, so a package that is missing is found out before any work.
"""

import importlib.util
import marshal
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import ebla
from ebla.pipeline.file_tasks import FileMoveTask
from ebla.pipeline.hash_tasks import HashTask
from ebla.pipeline.row_tasks import RowMoveTask
from ebla.pipeline.task_outcome import missing_package, parse_failure
from ebla.ports.transfer_engine import PipelineUnavailable
from ebla.transfers.spark_worker import prepare_worker

PACKAGES = "pyarrow 'pandas<3' numpy msgspec"

TASKS = (FileMoveTask, RowMoveTask, HashTask)
"""What is run out there. Whoever imports this module has all that they need, or is told what is missing."""


def make_zip(folder: Path) -> Path:
    """Of the installed package, whatever way it is installed. What is loaded here goes along compiled: from a zip a
    module would be compiled anew in each process, which takes each worker seconds."""
    root = Path(next(iter(ebla.__path__)))
    loaded = {module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)}
    made = folder / "ebla.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            name = Path("ebla", path.relative_to(root))
            source = path.read_bytes()
            archive.writestr(str(name), source)
            if str(path) in loaded:
                archive.writestr(str(name.with_suffix(".pyc")), compile_module(source, str(name)))
    return made


def compile_module(source: bytes, name: str) -> bytes:
    """A module for a Python of this version; others compile its source. Marked as one that needs no look at the source,
    because a zip keeps times to two seconds only."""
    header = importlib.util.MAGIC_NUMBER + struct.pack("<L", 1) + importlib.util.source_hash(source)
    return header + marshal.dumps(compile(source, name, "exec", dont_inherit=True))


def ship(spark: SparkSession, folder: Path) -> None:
    spark.addArtifacts(str(make_zip(folder)), pyfile=True)


def import_everything(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first task of a worker: by the time it runs, everything is imported."""
    prepare_worker()
    yield from batches


def warm_up(spark: SparkSession) -> None:
    """A first job, so that the first real one finds workers that have loaded everything. Raises
    `PipelineUnavailable`."""
    slots = spark.sparkContext.defaultParallelism
    try:
        spark.range(0, slots, 1, slots).mapInArrow(import_everything, "id bigint").collect()
    except PySparkException as error:
        text = str(error)
        package = missing_package(text)
        if package:
            raise PipelineUnavailable(
                f"the Python of Spark's executors lacks the package {package}",
                advice=f"install there what tasks need: pip install {PACKAGES}",
            ) from error
        raise PipelineUnavailable(f"Spark cannot run Python tasks: {parse_failure(text).message}") from error

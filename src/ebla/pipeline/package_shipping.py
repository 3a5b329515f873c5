"""Ships this package to the executors of a Spark cluster, as a zip that Spark puts on their path.

The package is plain Python; compiled packages (pyarrow, numpy, msgspec and what Spark itself needs) must be installed
there. The first task of a new session imports everything that later tasks use, so a missing package is found before any
work.
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
from ebla.pipeline.file_tasks import file_move_outcome
from ebla.pipeline.hash_tasks import read_hashes
from ebla.pipeline.row_tasks import row_move_outcome
from ebla.pipeline.task_outcome import missing_package, parse_failure
from ebla.ports.transfer_engine import PipelineUnavailable
from ebla.transfers.spark_worker import prepare_worker

PACKAGES = "pyarrow 'pandas<3' numpy msgspec"

TASKS = (file_move_outcome, row_move_outcome, read_hashes)
"""What runs on executors. Importing this module imports all that these tasks need, or fails."""


def make_zip(folder: Path) -> Path:
    """Of the installed package, however it is installed. Modules that are loaded here are included compiled: otherwise
    each worker process would compile them again, which takes seconds."""
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
    """Bytecode for this Python version; others compile the source. Marked as not to be checked against the source:
    a zip keeps times with a resolution of two seconds."""
    header = importlib.util.MAGIC_NUMBER + struct.pack("<L", 1) + importlib.util.source_hash(source)
    return header + marshal.dumps(compile(source, name, "exec", dont_inherit=True))


def ship(spark: SparkSession, folder: Path) -> None:
    spark.addArtifacts(str(make_zip(folder)), pyfile=True)


def import_everything(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first task of a worker: when it runs, everything is imported."""
    prepare_worker()
    yield from batches


def warm_up(spark: SparkSession) -> None:
    """Runs a first job, so that the first real one finds workers that have imported everything. Raises
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
                advice=f"install what tasks need there: pip install {PACKAGES}",
            ) from error
        raise PipelineUnavailable(f"Spark cannot run Python tasks: {parse_failure(text).message}") from error

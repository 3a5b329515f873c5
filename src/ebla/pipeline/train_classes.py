"""A Spark that is started, used a little and stopped, so that Java writes down which classes that took.

Run as `python -m ebla.pipeline.train_classes FOLDER JAVA_HOME ARCHIVES`: a folder for its files, the Java to use (may
be empty), and where archives are kept. It ends when its standard input does, so it does not outlive who started it.
"""

import os
import sys
import threading
from pathlib import Path

from ebla.pipeline import hash_tasks
from ebla.pipeline.class_archive import archive_path
from ebla.pipeline.java import find_java
from ebla.pipeline.java_process import empty_folder
from ebla.pipeline.package_shipping import import_everything
from ebla.pipeline.process_tree import descendants, kill
from ebla.pipeline.spark_session import SPARK_HOME, SparkStart
from ebla.pipeline.spark_settings import SparkOptions

WRITING_TIMEOUT_S = 300.0


def train(folder: Path, java_home: str, archives: Path) -> Path:
    """The archive; it is whole when it has its name."""
    made = archive_path(archives, find_java(java_home, os.environ), SPARK_HOME)
    archives.mkdir(parents=True, exist_ok=True)
    fresh = empty_folder(folder) / "classes.jsa"
    session = SparkStart(SparkOptions(folder=folder / "spark", master="local[2]", java_home=java_home), fresh).run()
    try:
        sample = session.spark.range(0, 4, 1, 2).mapInArrow(import_everything, "id bigint")
        hashes = sample.selectExpr(
            "int(id % 2) AS range", "int(id % 3) AS bucket", "int(id) AS replica", "'host' AS host",
            "binary(string(id)) AS hash", "id AS rows", "id AS replica_rows",
        ).persist()  # fmt: skip
        hash_tasks.differing_buckets(hashes).collect()
        hash_tasks.range_totals(hashes).collect()
        hashes.unpersist()
    finally:
        session.process.stop(WRITING_TIMEOUT_S)
    aside = archives / f"{made.name}.{os.getpid()}"
    aside.write_bytes(fresh.read_bytes())
    aside.replace(made)
    session.stop()
    empty_folder(folder)
    return made


def _end_with_parent() -> None:
    # Not through `sys.stdin`, whose lock this thread would hold when the interpreter ends.
    while os.read(0, 1):
        pass
    for mark in descendants(os.getpid()):
        kill(mark)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with_parent, name="parent-pipe", daemon=True).start()
    folder, java_home, archives = sys.argv[1:]
    train(Path(folder), java_home, Path(archives))


if __name__ == "__main__":
    main()

"""Makes the archive of the classes that Spark's driver loads: mapped instead of parsed, they halve the time of a start.

It is made once for a Java and a Spark, by `python -m ebla.pipeline.class_archive FOLDER JAVA_HOME ARCHIVES` at the
lowest priority, and kept in a folder that all nodes of a machine share. That program starts a Spark, uses it a little
and stops it, and Java writes down the classes that were loaded. Java checks an archive itself and ignores one that does
not fit. The program ends when its standard input does, so it does not outlive the process that started it.
"""

import os
import sys
import threading
from pathlib import Path

from ebla.pipeline import hash_tasks
from ebla.pipeline.java import archive_path, find_java
from ebla.pipeline.java_process import PipedProcess, ProcessSpec, descendants, empty_folder, kill_process
from ebla.pipeline.package_shipping import import_everything
from ebla.pipeline.spark_session import SPARK_HOME, SparkRuntime, SparkStart
from ebla.pipeline.spark_settings import SparkOptions

START_AFTER_S = 60.0
"""After the session is ready: when a cluster starts, its cores have other work at first."""
LOWEST_PRIORITY = 19
WRITE_TIMEOUT_S = 900.0
"""Java writes the archive when it ends, at the lowest priority: on a loaded machine that takes minutes."""


class ClassTraining:
    """Starts the program at most once for each engine: a failure is not repeated again and again."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._maker: PipedProcess | None = None
        self._is_over = options.archive_folder is None

    def poll(self, session: SparkRuntime, ready_s: float) -> None:
        """Call it now and then."""
        if self._maker is not None:
            if self._maker.exit_code is not None:
                self.stop()
        elif not self._is_over and ready_s >= START_AFTER_S:
            self._begin(session)

    def _begin(self, session: SparkRuntime) -> None:
        options = self._options
        assert options.archive_folder is not None
        if archive_path(options.archive_folder, session.java, SPARK_HOME).exists():
            self._is_over = True
            return
        folder = empty_folder(options.folder / "training")
        command = ["nice", "-n", str(LOWEST_PRIORITY), sys.executable, "-m", "ebla.pipeline.class_archive"]
        arguments = [str(folder / "spark"), options.java_home, str(options.archive_folder)]
        self._maker = PipedProcess(
            ProcessSpec(
                command=[*command, *arguments], environment=dict(os.environ), folder=folder, log=folder / "training.log"
            )
        )

    def stop(self) -> None:
        """Returns when none of its processes is left."""
        self._is_over = True
        if self._maker is not None:
            self._maker.stop()
            self._maker = None


def train(folder: Path, java_home: str, archives: Path) -> Path:
    """Returns the archive. It gets its name when it is complete."""
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
        session.process.stop(WRITE_TIMEOUT_S)
    aside = archives / f"{made.name}.{os.getpid()}"
    aside.write_bytes(fresh.read_bytes())
    aside.replace(made)
    session.stop()
    empty_folder(folder)
    return made


def _end_with_parent() -> None:
    # Not through `sys.stdin`: this thread would hold its lock when the interpreter ends.
    while os.read(0, 1):
        pass
    for process in descendants(os.getpid()):
        kill_process(process)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with_parent, name="parent-pipe", daemon=True).start()
    folder, java_home, archives = sys.argv[1:]
    train(Path(folder), java_home, Path(archives))


if __name__ == "__main__":
    main()

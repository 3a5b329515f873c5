"""The engine's half of `train_classes.py`: when an archive of classes is made, and that its maker ends with us."""

import os
import sys

from ebla.pipeline.class_archive import archive_path
from ebla.pipeline.java_process import PipedProcess, ProcessSpec, empty_folder
from ebla.pipeline.spark_session import SPARK_HOME, SparkRuntime
from ebla.pipeline.spark_settings import SparkOptions

START_AFTER_S = 60.0
"""Of a session that is ready: whoever starts a cluster has other uses for its cores at first."""

LOWEST_PRIORITY = 19


class ClassTraining:
    """At most once in the life of an engine: what fails is not tried again and again."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._maker: PipedProcess | None = None
        self._is_over = options.archive_folder is None

    def look(self, session: SparkRuntime, ready_s: float) -> None:
        """To be called now and then."""
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
        command = ["nice", "-n", str(LOWEST_PRIORITY), sys.executable, "-m", "ebla.pipeline.train_classes"]
        arguments = [str(folder / "spark"), options.java_home, str(options.archive_folder)]
        self._maker = PipedProcess(
            ProcessSpec(
                command=[*command, *arguments], environment=dict(os.environ), folder=folder, log=folder / "training.log"
            )
        )

    def stop(self) -> None:
        """Returns when no process of it is left."""
        self._is_over = True
        if self._maker is not None:
            self._maker.stop()
            self._maker = None

"""One node for tests of what users do with Spark, and Python programs with their own Spark."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.conftest import LocalNodes
from tests.pipeline.served_nodes import STEADY

from ebla.cli.tables.table_access import open_cql
from ebla.pipeline.java import archive_path, default_archive_folder, find_java, make_java_home
from ebla.pipeline.spark_session import SPARK_HOME

PROGRAM_S = 300.0
"""Enough for a start of Spark and some jobs on a busy machine."""


class SmallNode:
    def __init__(self, local: LocalNodes, folder: Path) -> None:
        self.data = local.data
        options = local.nodes[0].options
        self.address = options.address
        self.contact = f"{options.address}:{options.ports.cql}"
        self._environment = spark_environment(folder)

    def run(self, *command: str, **around: str) -> subprocess.CompletedProcess[str]:
        """Runs a Python program."""
        environment = {**self._environment, **around}
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=PROGRAM_S, check=False, env=environment
        )

    def ebla(self, *arguments: str, **around: str) -> subprocess.CompletedProcess[str]:
        """Runs an `ebla` command."""
        return self.run("-m", "ebla", *arguments, "--data", str(self.data), **around)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts an `ebla` command without waiting."""
        command = [sys.executable, "-m", "ebla", *arguments, "--data", str(self.data)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )

    def cql(self, *statements: str) -> list[tuple[bytes | None, ...]]:
        """Returns the rows of the last statement."""
        with open_cql(self.data) as cql:
            for statement in statements:
                found = cql.execute(statement)
        return list(found.rows)


def spark_environment(folder: Path) -> Mapping[str, str]:
    """Settings for a fast start: class data from an archive, and only the quick compiler."""
    java = find_java("", os.environ)
    archives = default_archive_folder(os.environ)
    assert archives is not None
    flags = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:SharedArchiveFile={archive_path(archives, java, SPARK_HOME)}"
    settings = {"spark.driver.extraJavaOptions": flags, "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    settings_text = " ".join(f'--conf "{name}={value}"' for name, value in settings.items())
    return {
        **os.environ,
        "JAVA_HOME": str(make_java_home(java, folder)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{settings_text} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def running_node(folder: Path) -> Iterator[SmallNode]:
    local = LocalNodes(folder / "nodes", 1, STEADY, shards=2)
    try:
        local.start_all()
        yield SmallNode(local, folder)
    finally:
        local.end_all()

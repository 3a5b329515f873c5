"""The settings and environment that Spark is started with. Pure.

The embedded Spark only schedules: its Python tasks move the bytes. So its Java process gets a small heap and the quick
compiler, which would be wrong for jobs whose rows go through Java.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOOPBACK = "127.0.0.1"
APPLICATION = "ebla pipeline"
SOCKET_FOLDER_LENGTH_MAX = 60
"""A Unix socket's path has at most 107 characters, of which Spark's own names take 42."""

_LOCAL = re.compile(r"local(?:\[(?P<slots>\*|\d+)\])?")

_FOREIGN = (
    "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_REMOTE", "SPARK_REMOTE", "SPARK_TESTING",
)  # fmt: skip
"""Inherited variables that would override the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    folder: Path
    """For all that Spark writes on this machine. One engine at a time."""
    master: str = "local[*]"
    secret_file: Path | None = None
    """With the secret that all processes of the cluster at `master` share."""
    authenticate: bool = True
    """False: a cluster is used without a secret. The driver then takes Java objects from anyone who reaches its
    ports."""
    java_home: str = ""
    python: str = sys.executable
    """The Python of tasks; for a cluster, a path on its machines."""
    driver_memory_mb: int = 512
    user_interface: bool = False
    event_log: str = ""
    task_tries: int = 4
    task_bytes: int = 100_000_000
    driver_host: str = LOOPBACK
    """The address at which the executors of a cluster reach the driver."""
    start_timeout_s: float = 180.0
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings, which override those made here, such as the memory of executors."""
    archive_folder: Path | None = None
    """For archives of Java classes, which halve the time of a start. None: none is made or used."""

    @property
    def is_embedded(self) -> bool:
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def needs_secret(self) -> bool:
        """An embedded Spark listens on the loopback only, and its Java process knows secrets of its own."""
        return not self.is_embedded and (self.authenticate or self.secret_file is not None)

    @property
    def masters(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports of a cluster's masters, of which one leads."""
        named = () if self.is_embedded else self.master.removeprefix("spark://").split(",")
        return tuple((host, int(port)) for host, _, port in (one.rpartition(":") for one in named))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFolders:
    """The folders and files that a start uses."""

    java_home: Path
    spark_home: Path
    sockets: Path
    work: Path
    """Emptied at each start."""
    archive: Path | None = None
    """Of Java classes, if there is one for this Java and Spark."""
    new_archive: Path | None = None


def master_with_tries(options: SparkOptions) -> str:
    """An embedded Spark attempts a task once, unless its master's name says otherwise."""
    local = _LOCAL.fullmatch(options.master)
    return f"local[{local['slots'] or 1},{options.task_tries}]" if local else options.master


def java_flags(options: SparkOptions, places: SparkFolders) -> tuple[str, ...]:
    flags = ["-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={places.work}"]
    if options.is_embedded:
        flags.append("-XX:TieredStopAtLevel=1")
    if places.new_archive is not None:
        flags.append(f"-XX:ArchiveClassesAtExit={places.new_archive}")
    elif places.archive is not None:
        flags += [f"-XX:SharedArchiveFile={places.archive}", "-Xshare:auto"]
    return tuple(flags)


def spark_settings(options: SparkOptions, places: SparkFolders) -> dict[str, str]:
    settings = {
        "spark.app.name": APPLICATION,
        "spark.master": master_with_tries(options),
        "spark.driver.bindAddress": options.driver_host,
        "spark.driver.extraJavaOptions": " ".join(java_flags(options, places)),
        "spark.driver.host": options.driver_host,
        "spark.driver.memory": f"{options.driver_memory_mb}m",
        "spark.local.dir": str(places.work),
        "spark.log.level": "ERROR",
        "spark.python.task.killTimeout": "100ms",
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": str(places.work / "warehouse"),
        "spark.task.maxFailures": str(options.task_tries),
        "spark.ui.enabled": str(options.user_interface).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if options.is_embedded:
        # A loopback TCP socket waits 40 ms for each task's first bytes. The path must exist on every executor, so a
        # cluster uses TCP.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = str(places.sockets)
    if options.needs_secret:
        settings |= {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    if options.event_log:
        settings["spark.eventLog.enabled"] = "true"
        settings["spark.eventLog.dir"] = options.event_log
    return settings | dict(options.settings)


def secret_properties(secret: str) -> str:
    """For a file that Spark reads: all users can see its command line."""
    escaped = secret.replace("\\", "\\\\")
    return f"spark.authenticate.secret={escaped}\n"


def spark_environment(options: SparkOptions, places: SparkFolders, inherited: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in inherited.items() if name not in _FOREIGN}
    return environment | {
        "JAVA_HOME": str(places.java_home),
        "PYSPARK_PYTHON": options.python,
        "SPARK_CONNECT_MODE": "0",
        "SPARK_HOME": str(places.spark_home),
        "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
        "SPARK_LOCAL_IP": options.driver_host,
    }

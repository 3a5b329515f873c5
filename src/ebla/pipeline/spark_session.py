"""A running Spark session and its Java process: start, stop, and the folders they use."""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from ebla.pipeline.java import Java, archive_path, find_java, make_java_home
from ebla.pipeline.java_process import JavaProcess, ProcessSpec, empty_folder
from ebla.pipeline.package_shipping import ship, warm_up
from ebla.pipeline.spark_settings import (
    SOCKET_FOLDER_LENGTH_MAX,
    SparkFolders,
    SparkOptions,
    secret_properties,
    spark_environment,
    spark_settings,
)
from ebla.pipeline.task_outcome import java_cause
from ebla.ports.transfer_engine import PipelineUnavailable

SPARK_HOME = Path(pyspark.__file__).parent
MASTER_TIMEOUT_S = 5.0
JAVA_NICENESS = 9
"""Added to our own: while tasks move bytes, this process must still answer its control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRuntime:
    spark: SparkSession
    java: Java
    process: JavaProcess
    places: SparkFolders

    def stop(self) -> None:
        """Returns when none of its processes is left. Spark stops when its Java process exits, which, unlike a call to
        Spark, has a bound."""
        self.process.stop()
        self._forget()

    def kill(self) -> None:
        """The same at once."""
        self.process.kill()
        self._forget()

    def _forget(self) -> None:
        forget_spark(self.spark.sparkContext)
        remove_folders(self.places)


class SparkStart:
    """A start that another thread can abort."""

    def __init__(self, options: SparkOptions, new_archive: Path | None = None) -> None:
        self._options = options
        self._archive_to_make = new_archive
        self._lock = threading.Lock()
        self._process: JavaProcess | None = None
        self._aborted = False

    def run(self) -> SparkRuntime:
        """Takes seconds. Raises `PipelineUnavailable`."""
        options = self._options
        if SparkContext._active_spark_context is not None:  # noqa: SLF001  # PySpark has no public name for it
            raise PipelineUnavailable("this process has a Spark session already, and Spark allows one")
        secret = read_secret(options)
        check_masters(options)
        java = find_java(options.java_home, os.environ)
        places = replace(make_folders(options, java), new_archive=self._archive_to_make)
        process = self._launch(places, secret)
        try:
            spark = _connect(process, options)
            if not options.is_embedded:
                ship(spark, places.work)
            warm_up(spark)
        except BaseException as error:
            cause, log_tail = error_text(error), process.log_tail()
            if places.archive is not None and not self._aborted and has_crashed(process.exit_code):
                # Whatever the cause, do not use the same archive again.
                places.archive.unlink(missing_ok=True)
            process.kill()
            forget_spark(SparkContext._active_spark_context)  # noqa: SLF001  # there was none before: it belongs to this start
            remove_folders(places)
            if isinstance(error, PipelineUnavailable) or not isinstance(error, Exception):
                raise
            raise PipelineUnavailable(f"Spark did not start: {cause}; its log ends with: {log_tail}") from error
        return SparkRuntime(spark=spark, java=java, process=process, places=places)

    def abort(self) -> None:
        """Returns when none of its processes is left; `run` raises."""
        with self._lock:
            self._aborted = True
            if self._process is not None:
                self._process.kill()

    def _launch(self, places: SparkFolders, secret: str | None) -> JavaProcess:
        command = [str(SPARK_HOME / "bin" / "spark-submit")]
        if secret is not None:
            command += ["--load-spark-defaults", "--properties-file", str(write_secret(places.work, secret))]
        for name, value in sorted(spark_settings(self._options, places).items()):
            command += ["--conf", f"{name}={value}"]
        environment = spark_environment(self._options, places, os.environ)
        log = self._options.folder / "spark.log"
        start = ProcessSpec(
            command=[*command, "pyspark-shell"],
            environment=environment,
            folder=places.work,
            log=log,
            niceness=JAVA_NICENESS,
        )
        with self._lock:
            if self._aborted:
                raise PipelineUnavailable("Spark is being stopped")
            self._process = JavaProcess(start)
            return self._process


def has_crashed(exit_code: int | None) -> bool:
    """Not if this node ended the start, as when it loses the leadership: then the archive is not to blame."""
    return exit_code not in (None, -signal.SIGKILL, -signal.SIGTERM)


def error_text(error: BaseException) -> str:
    """Call it before the Java process is ended: the text of a Java error is fetched from that process."""
    try:
        return java_cause(str(error))
    except (OSError, Py4JError):
        return f"{type(error).__name__}, whose text could not be fetched from Spark's Java process any more"


def read_secret(options: SparkOptions) -> str | None:
    """None: none is needed. Raises `PipelineUnavailable` for a secret that is missing or that others can read."""
    if not options.needs_secret:
        return None
    path = options.secret_file
    if path is None:
        raise PipelineUnavailable(
            f"there is no secret for {options.master}, so the driver would accept Java objects from anyone",
            advice="set pipeline.secret_file to a file with the cluster's spark.authenticate.secret, or "
            "pipeline.authenticate = false",
        )
    try:
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PipelineUnavailable(
                f"{path} can be read by others than its owner {os.getuid()}, who runs this node",
                advice=f"chown {os.getuid()} {path}; chmod 600 {path}",
            )
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineUnavailable(
            f"the file of pipeline.secret_file cannot be read: {error}", advice="it has one line of ASCII characters"
        ) from None
    if not secret or not secret.isprintable():
        raise PipelineUnavailable(f"{path} holds no secret", advice="it has one line of ASCII characters")
    return secret


def write_secret(folder: Path, secret: str) -> Path:
    """The folder is removed with the session."""
    path = folder / "secret.properties"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secret_properties(secret))
    return path


def check_masters(options: SparkOptions) -> None:
    """Fails at once; Spark itself would retry for a minute and then only say that it has stopped."""
    refused = []
    for place in options.masters:
        try:
            with socket.create_connection(place, MASTER_TIMEOUT_S):
                return
        except OSError as error:
            refused.append(f"{place[0]}:{place[1]} {error.strerror or error}")
    if refused:
        raise PipelineUnavailable(
            f"no Spark master answers at {options.master}: {', '.join(refused)}",
            advice="start it, or set pipeline.master",
        )


def _connect(process: JavaProcess, options: SparkOptions) -> SparkSession:
    port, secret = process.wait_gateway(options.start_timeout_s)
    _keep_traces_out_of_logs()
    with _gateway_environment(port, secret):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark's own, without types
    assert isinstance(gateway, JavaGateway)
    # The Java process has all settings already: those of its own start cannot be changed afterwards.
    context = SparkContext(gateway=gateway)
    context.pythonExec = options.python
    # This server would print a stack trace when the Java process dies; the engine reports that itself.
    context._accumulatorServer.handle_error = _ignore_error  # type: ignore[method-assign]  # noqa: SLF001  # see above
    spark = SparkSession(context)
    spark.conf.set("spark.sql.shuffle.partitions", str(context.defaultParallelism))
    return spark


@cache
def _keep_traces_out_of_logs() -> None:
    """Py4J logs a stack trace for each call that the end of the Java process interrupts. The call raises, and its
    caller reports what happened."""
    logging.getLogger().addFilter(lambda record: record.module not in ("java_gateway", "clientserver"))


def _ignore_error(request: object, client_address: object) -> None:
    """For errors of a connection that no one can do anything about."""


@contextmanager
def _gateway_environment(port: int, secret: str) -> Iterator[None]:
    """PySpark connects to a running Java process if the environment names one."""
    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def forget_spark(context: SparkContext | None) -> None:
    """PySpark keeps one context and one connection for the lifetime of a Python process, and cannot start another one
    when the Java process is gone. So this resets it. A later context is left untouched."""
    if context is not SparkContext._active_spark_context:  # noqa: SLF001  # see above
        return
    gateway = SparkContext._gateway  # noqa: SLF001  # see above
    if context is not None:
        context._jsc = None  # noqa: SLF001  # it would be called to stop, and is gone
        context.stop()
    if gateway is not None:
        gateway.close(keep_callback_server=True, close_callback_server_connections=True)
        gateway.shutdown_callback_server()
    SparkContext._gateway = None  # noqa: SLF001  # see above
    SparkContext._jvm = None  # noqa: SLF001  # see above
    SparkSession._instantiatedSession = None  # noqa: SLF001  # see above


def make_folders(options: SparkOptions, java: Java) -> SparkFolders:
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.event_log:
        _make_event_folder(Path(options.event_log))
    return SparkFolders(
        java_home=make_java_home(java, options.folder),
        spark_home=SPARK_HOME,
        sockets=_socket_folder(options.folder),
        work=empty_folder(options.folder / "work"),
        archive=_archive_for(options, java),
    )


def _make_event_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PipelineUnavailable(
            f"the folder for Spark's event log, {folder}, cannot be made: {error.strerror}",
            advice="make it, or set pipeline.event_log",
        ) from error


def _socket_folder(folder: Path) -> Path:
    """In the given folder; if its name is too long, in a temporary folder, which is noted here: a killed process cannot
    remove it, so the next one does."""
    here, note = folder / "sockets", folder / "sockets-elsewhere"
    if note.exists():
        shutil.rmtree(note.read_text(), ignore_errors=True)
        note.unlink()
    if len(str(here)) <= SOCKET_FOLDER_LENGTH_MAX:
        return empty_folder(here)
    elsewhere = Path(tempfile.mkdtemp(prefix="ebla-spark-"))
    note.write_text(str(elsewhere))
    return elsewhere


def _archive_for(options: SparkOptions, java: Java) -> Path | None:
    if options.archive_folder is None:
        return None
    path = archive_path(options.archive_folder, java, SPARK_HOME)
    return path if path.is_file() else None


def remove_folders(places: SparkFolders) -> None:
    for folder in (places.sockets, places.work):
        shutil.rmtree(folder, ignore_errors=True)

"""The Java process of Spark's driver: starts it, stops it, and makes sure that it does not outlive this process.

Spark's own script starts it and ends in an `exec`, so the process started here is the one that stays. It reads its
standard input, a pipe whose other end only this process holds, and exits at the end of it: however this process dies,
it does too. Its Python workers are children of a daemon that does the same with a pipe from it.
"""

import os
import secrets
import shutil
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ebla.ports.transfer_engine import PipelineUnavailable

POLL_S = 0.02
STOP_TIMEOUT_S = 10.0
WORKERS_STOP_TIMEOUT_S = 3.0
LOG_TAIL_BYTES = 2_000
LOG_BYTES_MAX = 8 << 20
NICENESS_MAX = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    """Its working directory."""
    log: Path
    """Its output. The output of the process before it is kept in a second file."""
    niceness: int = 0
    """Added to our own, and inherited by all that it starts."""

    @property
    def previous_log(self) -> Path:
        return self.log.with_name(f"{self.log.name}.1")


class PipedProcess:
    """A child process that ends, with all its descendants, when its standard input does."""

    def __init__(self, start: ProcessSpec) -> None:
        self._start = start
        if start.log.exists():
            start.log.replace(start.previous_log)
        # Opened for appending, so that the process continues at the beginning after the log was truncated.
        with start.log.open("ab") as log:
            # Its own process group, which Ctrl-C does not reach, in our session: a kill of the session ends all of it,
            # even a frozen process that does not see the end of its input.
            self._process = subprocess.Popen(  # noqa: S603  # Spark's own script or our own Python
                start.command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=start.folder, env=start.environment,
                process_group=0,
            )  # fmt: skip
        if start.niceness:
            with suppress(ProcessLookupError):  # it has exited already
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self._process.pid, min(NICENESS_MAX, own + start.niceness))
        self._stopping = threading.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait_exit(self, wait_s: float) -> bool:
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self) -> str:
        """The last lines of its output, on one line."""
        try:
            output = self._start.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        lines = [line.strip() for line in output.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
        return " / ".join(lines[-3:])

    def rotate_log(self) -> None:
        """Call it now and then. The process holds the log open, so it cannot be renamed: it is copied and truncated;
        output between the two is lost."""
        log = self._start.log
        # Neither a full disk nor a deleted log is a reason to end the process.
        with suppress(OSError):
            if log.stat().st_size > LOG_BYTES_MAX:
                shutil.copyfile(log, self._start.previous_log)
                os.truncate(log, 0)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Returns when it and all its descendants are gone."""
        self._stopping.set()
        workers = descendants(self.pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self.wait_exit(timeout_s):
            workers = (*workers, *descendants(self.pid))
            self._process.kill()
            self._process.wait()
        self._end_workers(workers)

    def kill(self) -> None:
        """The same without waiting for it to end."""
        workers = descendants(self.pid)
        self._process.kill()
        self._end_workers(workers)
        self.stop()

    def _end_workers(self, workers: Sequence[psutil.Process]) -> None:
        waiting = threading.Event()
        for _ in range(int(WORKERS_STOP_TIMEOUT_S / POLL_S)):
            if not any(is_running(worker) for worker in workers):
                return
            waiting.wait(POLL_S)
        for worker in workers:
            kill_process(worker)


class JavaProcess(PipedProcess):
    def __init__(self, start: ProcessSpec) -> None:
        self._gateway_file = start.folder / f"gateway-{secrets.token_hex(8)}"
        environment = {**start.environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._gateway_file)}
        super().__init__(replace(start, environment=environment))

    def wait_gateway(self, timeout_s: float) -> tuple[int, str]:
        """The port and the secret of its Py4J gateway. Raises `PipelineUnavailable`."""
        for _ in range(int(timeout_s / POLL_S)):
            if self._gateway_file.exists():
                return self._read_gateway()
            if self.exit_code is not None:
                raise PipelineUnavailable(f"Spark's Java process did not start: {self.log_tail()}")
            if self._stopping.wait(POLL_S):
                raise PipelineUnavailable("Spark is being stopped")
        raise PipelineUnavailable(f"Spark's Java process was not ready after {timeout_s:.0f} s")

    def _read_gateway(self) -> tuple[int, str]:
        content = self._gateway_file.read_bytes()
        self._gateway_file.unlink()
        port, size = struct.unpack(">ii", content[:8])
        secret = content[8:].decode()
        assert len(secret) == size
        return port, secret


def empty_folder(folder: Path) -> Path:
    """The folder, empty and private to this user."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    return folder


def descendants(root: int) -> tuple[psutil.Process, ...]:
    try:
        return tuple(psutil.Process(root).children(recursive=True))
    except psutil.NoSuchProcess:
        return ()


def is_running(process: psutil.Process) -> bool:
    """False also for a zombie: only its exit status is left."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill_process(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()

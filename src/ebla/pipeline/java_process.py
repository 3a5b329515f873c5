"""The Java process of Spark's driver: its start, its end, and that it never outlives us.

It is started by Spark's own script, which ends in an `exec`, so the process that we start is the one that stays. It
reads its standard input, a pipe whose other end only we hold, and exits at the end of it: however we die, it does. Its
Python workers are children of a daemon that does the same with a pipe from it.
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

from ebla.pipeline.process_tree import ProcessMark, descendants, is_running, kill
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
    """Where it runs."""
    log: Path
    """What it says; what the one before it has said is kept beside that."""
    niceness: int = 0
    """Beyond our own, also of whatever it starts."""

    @property
    def previous_log(self) -> Path:
        return self.log.with_name(f"{self.log.name}.1")


class PipedProcess:
    """A child that ends when its standard input does, with all below it."""

    def __init__(self, start: ProcessSpec) -> None:
        self._start = start
        if start.log.exists():
            start.log.replace(start.previous_log)
        # Appended to, so that it goes on at the beginning after it was cut.
        with start.log.open("ab") as log:
            # A group of its own, which no Ctrl-C reaches, in our session: whoever ends that finds all of it, also what
            # is frozen and does not see its input end.
            self._process = subprocess.Popen(  # noqa: S603  # Spark's own script or our own Python
                start.command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=start.folder, env=start.environment,
                process_group=0,
            )  # fmt: skip
        if start.niceness:
            with suppress(ProcessLookupError):  # it has ended already
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
        """The end of what it has said, on one line."""
        try:
            said = self._start.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        lines = [line.strip() for line in said.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
        return " / ".join(lines[-3:])

    def rotate_log(self) -> None:
        """To be called now and then. The process holds it open, so it cannot be put aside: it is copied and cut, and
        what is said between the two is lost."""
        log = self._start.log
        # Neither a full disk nor a log that somebody removed is a reason to end the process.
        with suppress(OSError):
            if log.stat().st_size > LOG_BYTES_MAX:
                shutil.copyfile(log, self._start.previous_log)
                os.truncate(log, 0)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Returns when it and all below it are gone."""
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
        """The same at once."""
        workers = descendants(self.pid)
        self._process.kill()
        self._end_workers(workers)
        self.stop()

    def _end_workers(self, workers: Sequence[ProcessMark]) -> None:
        waiting = threading.Event()
        for _ in range(int(WORKERS_STOP_TIMEOUT_S / POLL_S)):
            if not any(is_running(worker) for worker in workers):
                return
            waiting.wait(POLL_S)
        for worker in workers:
            kill(worker)


class JavaProcess(PipedProcess):
    def __init__(self, start: ProcessSpec) -> None:
        self._greeting = start.folder / f"gateway-{secrets.token_hex(8)}"
        environment = {**start.environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._greeting)}
        super().__init__(replace(start, environment=environment))

    def wait_gateway(self, timeout_s: float) -> tuple[int, str]:
        """The port and the secret by which it is talked to. Raises `PipelineUnavailable`."""
        for _ in range(int(timeout_s / POLL_S)):
            if self._greeting.exists():
                return self._read_greeting()
            if self.exit_code is not None:
                raise PipelineUnavailable(f"Spark's Java process did not start: {self.log_tail()}")
            if self._stopping.wait(POLL_S):
                raise PipelineUnavailable("Spark is being stopped")
        raise PipelineUnavailable(f"Spark's Java process was not ready after {timeout_s:.0f} s")

    def _read_greeting(self) -> tuple[int, str]:
        told = self._greeting.read_bytes()
        self._greeting.unlink()
        port, size = struct.unpack(">ii", told[:8])
        secret = told[8:].decode()
        assert len(secret) == size
        return port, secret


def empty_folder(folder: Path) -> Path:
    """This folder, with nothing in it and for nobody else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    return folder

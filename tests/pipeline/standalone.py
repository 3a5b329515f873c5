"""A Spark cluster of one master and workers, each a process on the loopback, and Pythons for its tasks."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from ebla.pipeline.java import find_java, make_java_home
from ebla.pipeline.java_process import descendants, kill_process
from ebla.pipeline.spark_session import SPARK_HOME

LOOPBACK = "127.0.0.1"
SECRET = "known-to-both-sides"  # of a cluster of the tests
START_S = 90.0
STOP_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class StandaloneCluster:
    def __init__(self, folder: Path, hosts: Sequence[str] = (LOOPBACK,), secret: str = "") -> None:
        """`hosts`: of the workers. Spark runs the second attempt of a task only on another host. `secret`: without it
        nobody can connect."""
        self.secret_file = folder / "secret"
        self.secret_file.touch(0o600)
        self.secret_file.write_text(f"{secret}\n")
        self._properties = folder / "daemons.properties"
        self._properties.touch(0o600)
        if secret:
            locked = f"spark.network.crypto.enabled true\nspark.authenticate.secret {secret}\n"
            self._properties.write_text(f"spark.authenticate true\n{locked}")
        self._folder = folder
        self._hosts = hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    @property
    def master(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def __enter__(self) -> "StandaloneCluster":
        home = make_java_home(find_java("", os.environ), self._folder)
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
            f"-Dspark.master.rest.enabled=false -XX:-UsePerfData -Djava.io.tmpdir={self._folder} "
            f"-Dspark.local.dir={self._folder}",
        }
        try:
            place = ("--host", LOOPBACK, "--port", str(self.port), "--webui-port", "0")
            self._start("master.Master", "Master", *place)
            self._wait_for("Master", "I have been elected leader")
            for host in self._hosts:
                worker = ("--host", host, "--webui-port", "0", "--cores", "2", "--memory", "2g")
                folder = ("--work-dir", str(self._folder / f"work-{host}"))
                self._start("worker.Worker", f"Worker-{host}", *worker, *folder, self.master)
                self._wait_for(f"Worker-{host}", "Successfully registered with master")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    @property
    def worker_pid(self) -> int:
        return self._processes[1].pid

    @property
    def executors(self) -> tuple[psutil.Process, ...]:
        """All processes below the first worker."""
        return descendants(self.worker_pid)

    def _start(self, kind: str, name: str, *arguments: str) -> None:
        daemon = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command = [*daemon, "--properties-file", str(self._properties), *arguments]
        with self._log(name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd=self._folder
                )
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, words: str) -> None:
        process = self._processes[-1]
        for _ in range(int(START_S / 0.05)):
            said = self._log(name).read_text(errors="replace")
            if words in said:
                return
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"{name} ended: {said}")
        raise AssertionError(f"{name} was not ready: {self._log(name).read_text(errors='replace')}")

    def _stop(self) -> None:
        below = [mark for process in self._processes for mark in descendants(process.pid)]
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for mark in below:
            kill_process(mark)


def bare_python(folder: Path, without: tuple[str, ...]) -> Path:
    """A Python with the packages installed here, without these."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(without) and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    base = Path(getattr(sys, "_base_executable", sys.executable))
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH="{packages}:$PYTHONPATH"\nexec "{base}" "$@"\n')
    script.chmod(0o700)
    return script

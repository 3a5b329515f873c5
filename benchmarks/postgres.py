"""PostgreSQL from Debian: our own server in a folder, and a table that pgbench loads over its socket."""

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

INSTALL = "apt-get install postgresql"
START_S = 30.0
LOOKS_MAX = 1_000
USER = "postgres"
PORT = 5432
"""It is also part of the socket's name."""
CLIENTS = 64
VALUE_BYTES = 100
UPSERT = (
    "\\set k random(0, {keys} - 1)\n"
    "INSERT INTO t (k, c, v) VALUES (:k, 0, '{text}') ON CONFLICT (k, c) DO UPDATE SET v = excluded.v;\n"
)
SELECT = "\\set k random(0, {keys} - 1)\nSELECT v FROM t WHERE k = :k AND c = 0;\n"
SETTINGS = ("listen_addresses=", "shared_buffers=256MB", "max_wal_size=4GB", "max_connections=200")


def server_programs() -> Path | None:
    """The folder of the newest version. Debian has only the client programs on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def programs() -> Path | None:
    return server_programs() if shutil.which("pgbench") else None


@dataclass(frozen=True, slots=True)
class PostgresLoad:
    """CPU is that of the server, per operation."""

    per_s: float
    cpu_us: float


class PostgresServer:
    """PostgreSQL refuses to run as root, so it runs as Debian's user for it."""

    def __init__(self, folder: Path, settings: Sequence[str] = SETTINGS, port: int = PORT) -> None:
        found = server_programs()
        assert found is not None
        self._folder = folder
        self._port = port
        account = pwd.getpwnam(USER) if os.geteuid() == 0 else None
        self._user = None if account is None else account.pw_uid
        self._group = None if account is None else account.pw_gid
        folder.mkdir()
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        self._run([str(found / "initdb"), "--auth=trust", f"--username={USER}", "--pgdata", str(folder / "data")])
        flags = [
            flag
            for setting in (*settings, f"port={port}", f"unix_socket_directories={folder}")
            for flag in ("-c", setting)
        ]
        with Path(os.devnull).open("wb") as nowhere:
            self._server = subprocess.Popen(
                [str(found / "postgres"), "-D", str(folder / "data"), *flags],
                stdout=nowhere,
                stderr=nowhere,
                cwd=folder,
                user=self._user,
                group=self._group,
            )
        self._wait_ready()

    def close(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def cpu_s(self) -> float:
        """Of the server's processes, those that ended with their connections included. One that ends in between is
        counted in the next look."""
        server = psutil.Process(self._server.pid)
        for _ in range(LOOKS_MAX):
            ended = server.cpu_times()
            try:
                running = [process.cpu_times() for process in server.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            total = ended.user + ended.system + ended.children_user + ended.children_system
            return float(total + sum(each.user + each.system for each in running))
        raise RuntimeError(f"the processes of PostgreSQL change too fast: {LOOKS_MAX} looks were not enough")

    def _wait_ready(self) -> None:
        ends_at = time.monotonic() + START_S
        while True:
            try:
                self.sql("SELECT 1")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > ends_at:
                    raise
                time.sleep(0.1)

    def sql(self, text: str) -> None:
        self._run(["psql", "-q", "-c", text, *self._where()])

    def _where(self) -> list[str]:
        return ["-h", str(self._folder), "-p", str(self._port), "-U", USER, "postgres"]

    def _run(self, command: Sequence[str], *, durable: bool = True) -> str:
        environment = os.environ | {"PGOPTIONS": f"-c synchronous_commit={'on' if durable else 'off'}"}
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env=environment,
            cwd=self._folder,
            user=self._user,
            group=self._group,
        )
        return done.stdout


class Postgres(PostgresServer):
    """With a table of this many keys."""

    def __init__(self, folder: Path, keys: int) -> None:
        super().__init__(folder)
        self.sql("CREATE TABLE t (k bigint, c int, v text, PRIMARY KEY (k, c))")
        self.sql(f"INSERT INTO t SELECT k, 0, repeat('v', {VALUE_BYTES}) FROM generate_series(0, {keys} - 1) AS k")
        self._upsert = self._script("upsert", UPSERT.format(keys=keys, text="w" * VALUE_BYTES))
        self._select = self._script("select", SELECT.format(keys=keys))

    def upsert(self, seconds: float, *, durable: bool) -> PostgresLoad:
        return self._bench(self._upsert, seconds, durable=durable)

    def select(self, seconds: float) -> PostgresLoad:
        return self._bench(self._select, seconds, durable=True)

    def _bench(self, script: Path, seconds: float, *, durable: bool) -> PostgresLoad:
        command = ["pgbench", "-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-T", str(round(seconds))]
        before = self.cpu_s()
        said = self._run([*command, "-f", str(script), *self._where()], durable=durable)
        cpu_s = self.cpu_s() - before
        done = re.search(r"number of transactions actually processed: (\d+)", said)
        rate = re.search(r"tps = ([\d.]+)", said)
        assert done is not None
        assert rate is not None
        return PostgresLoad(float(rate[1]), cpu_s / int(done[1]) * 1e6)

    def _script(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

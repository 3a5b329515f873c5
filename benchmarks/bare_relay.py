"""The upper bound of three processes on this machine and its disk: a commit of one record and nothing else.

The first process sends the record to two others, writes and syncs it; each of those writes, syncs and answers with one
byte. It is committed once two of the three have synced. Blocking sockets, no consensus, no codec, no event loop: only
the wake-ups, the syscalls and the disk remain, which three concurrent syncs share.

python -m benchmarks.bare_relay HOST PORT FILE     (started by `BareRelay` itself)
"""

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

RECORD_BYTES = 200
FILE_BYTES = 16 << 20
ANSWER_S_MAX = 10.0


class _File:
    """Preallocated, and overwritten from the start when it is full."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._descriptor, 0, FILE_BYTES)
        os.fsync(self._descriptor)
        self._offset = 0

    def write_and_sync(self, data: bytes) -> None:
        if self._offset + len(data) > FILE_BYTES:
            self._offset = 0
        os.pwrite(self._descriptor, data, self._offset)
        os.fdatasync(self._descriptor)
        self._offset += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


class BareRelay:
    """Has two processes; close it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = _File(folder / "first")
        self._followers: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._answered = [0, 0]
        self._sent = 0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            for name in ("second", "third"):
                command = [sys.executable, "-m", "benchmarks.bare_relay", host, str(port), str(folder / name)]
                self._processes.append(subprocess.Popen(command))
                follower, _ = listener.accept()
                follower.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._followers.append(follower)

    def measure(self, seconds: float) -> tuple[float, float]:
        """Commits per second with one in flight, and the median in milliseconds."""
        record = os.urandom(RECORD_BYTES)
        took: list[float] = []
        began = time.perf_counter()
        while (sent_at := time.perf_counter()) < began + seconds:
            for follower in self._followers:
                follower.sendall(record)
            self._sent += 1
            self._file.write_and_sync(record)
            while max(self._answered) < self._sent:
                self._hear()
            took.append(time.perf_counter() - sent_at)
        spell_s = time.perf_counter() - began
        while min(self._answered) < self._sent:
            self._hear()
        took.sort()
        return len(took) / spell_s, took[len(took) // 2] * 1e3

    def _hear(self) -> None:
        ready, _, _ = select.select(self._followers, [], [], ANSWER_S_MAX)
        assert ready, f"neither answered within {ANSWER_S_MAX} s"
        for follower in ready:
            answers = follower.recv(65536)
            assert answers, "a process of the relay ended"
            self._answered[self._followers.index(follower)] += len(answers)

    def close(self) -> None:
        for follower in self._followers:
            follower.close()
        for process in self._processes:
            process.wait()
        self._file.close()


def follow(address: tuple[str, int], path: Path) -> None:
    file = _File(path)
    with socket.create_connection(address) as leader:
        leader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        while fresh := leader.recv(65536):
            data += fresh
            whole = len(data) // RECORD_BYTES
            if whole:
                file.write_and_sync(data[: whole * RECORD_BYTES])
                data = data[whole * RECORD_BYTES :]
                leader.sendall(b"." * whole)


if __name__ == "__main__":
    _, own_host, own_port, own_path = sys.argv
    follow((own_host, int(own_port)), Path(own_path))

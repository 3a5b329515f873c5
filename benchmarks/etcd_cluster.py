"""Three members of Debian's etcd on this machine, loaded by a tool written in C that sends ready-made gRPC frames.

Clients come over Unix sockets, as Ebla's do; members speak over loopback TCP without TLS, which is etcd's default.
"""

import random
import shutil
import statistics
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

INSTALL = "apt-get install etcd-server nghttp2-client"
KEY = b"user/bench-key-1"
START_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The result of one interval of load. CPU is that of all members together, per operation."""

    per_s: float
    p50_ms: float
    cpu_us: float


def missing_programs() -> list[str]:
    return [name for name in ("etcd", "h2load") if shutil.which(name) is None]


class EtcdCluster:
    def __init__(self, folder: Path, value: bytes) -> None:
        self._folder = folder
        self._frames = {"Put": folder / "put.frame", "Range": folder / "range.frame"}
        folder.mkdir()
        self._frames["Put"].write_bytes(_grpc_frame(_field(1, KEY) + _field(2, value)))
        self._frames["Range"].write_bytes(_grpc_frame(_field(1, KEY)))
        network = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}"
        peers = {f"m{number}": f"http://{network}.{number}:2380" for number in (1, 2, 3)}
        self._processes = [self._start(name, peers) for name in peers]
        self._leader = self._wait_leader()

    def _start(self, name: str, peers: dict[str, str]) -> subprocess.Popen[bytes]:
        # etcd names a Unix socket by host and port, and creates it in the member's working directory.
        command = ["etcd", "--name", name, "--data-dir", f"data-{name}", "--log-level", "error"]
        command += ["--listen-client-urls", f"unix://{name}:1", "--advertise-client-urls", f"unix://{name}:1"]
        command += ["--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]]
        command += ["--initial-cluster", ",".join(f"{other}={url}" for other, url in peers.items())]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def _wait_leader(self) -> Path:
        ends_at = time.monotonic() + START_S
        while time.monotonic() < ends_at:
            for number in (1, 2, 3):
                socket = self._folder / f"m{number}:1"
                try:
                    status = self._ask(socket, "/etcdserverpb.Maintenance/Status", b"")
                except grpc.RpcError:
                    continue
                own = _varint_field(_bytes_field(status, 1), 2)
                if own and own == _varint_field(status, 4):
                    return socket
            time.sleep(0.1)
        raise RuntimeError(f"etcd has no leader after {START_S} s; see {self._folder}/*.log")

    def _ask(self, socket: Path, method: str, message: bytes) -> bytes:
        with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")]) as channel:
            answer = channel.unary_unary(method)(message, timeout=2)
        assert isinstance(answer, bytes)
        return answer

    def put(self, clients: int, seconds: float) -> Load:
        before = self._revision()
        load, count = self._load("Put", clients, seconds)
        applied = self._revision() - before
        assert applied >= count, f"{count} puts were answered, {applied} applied"
        return load

    def read(self, clients: int, seconds: float) -> Load:
        return self._load("Range", clients, seconds)[0]

    def _revision(self) -> int:
        return _varint_field(_bytes_field(self._ask(self._leader, "/etcdserverpb.KV/Range", _field(1, KEY)), 1), 3)

    def _load(self, method: str, clients: int, seconds: float) -> tuple[Load, int]:
        log = self._folder / "h2load.log"
        log.unlink(missing_ok=True)
        command = ["h2load", "-D", str(max(1, round(seconds))), "-c", str(clients), "-m", "1", "--log-file", str(log)]
        command += ["-d", str(self._frames[method]), "-H", "content-type: application/grpc", "-H", "te: trailers"]
        command += [f"--base-uri=unix:{self._leader}", f"http://localhost/etcdserverpb.KV/{method}"]
        cpu_before = self._cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
        cpu_s = self._cpu_s() - cpu_before
        assert done.returncode == 0, done.stdout + done.stderr
        rows = [line.split("\t") for line in log.read_text().splitlines()]
        took_us = [int(row[2]) for row in rows if row[1] == "200"]
        began_us = [int(row[0]) for row in rows]
        spell_s = (max(began_us) - min(began_us)) / 1e6
        load = Load(len(took_us) / spell_s, statistics.median(took_us) / 1000, cpu_s / len(took_us) * 1e6)
        return load, len(took_us)

    def _cpu_s(self) -> float:
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return float(sum(each.user + each.system for each in times))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


# ---- as much of protobuf and gRPC framing as four messages need


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _grpc_frame(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _fields(data: bytes) -> dict[int, int | bytes]:
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, at = _read_varint(data, at)
        if tag & 7 == 2:
            found[tag >> 3] = data[at : at + number]
            at += number
        else:
            assert tag & 7 == 0, "these messages hold numbers and texts alone"
            found[tag >> 3] = number
    return found


def _varint_field(data: bytes, number: int) -> int:
    value = _fields(data).get(number, 0)
    assert isinstance(value, int)
    return value


def _bytes_field(data: bytes, number: int) -> bytes:
    value = _fields(data).get(number, b"")
    assert isinstance(value, bytes)
    return value

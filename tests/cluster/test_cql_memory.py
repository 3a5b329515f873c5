"""What hostile CQL clients can make a real shard keep in memory, against the bounds in its options."""

import contextlib
import socket
from collections.abc import Iterator

import psutil
import pytest
from tests.cluster.conftest import LocalNodes, eventually
from tests.unit.cql.protocol_rig import STARTUP_BODY, long_string, request

from ebla.wire.cql.frames import HEADER, HEADER_BYTES, Opcode

REQUESTS_BYTES = 32 << 20
CACHE_BYTES = 16 << 20
FRAME_BYTES = 15 << 20
FRAMES = 100
TEXTS = 4_096
TEXT_BYTES = 200_000
GROWTH = 1.5
"""Of a bound."""
SETTINGS = (
    f"limits.shard_requests_bytes_max={REQUESTS_BYTES}",
    f"limits.cql_statement_cache_bytes_max={CACHE_BYTES}",
    "limits.cql_frame_ms=1000",
)


class RawClient:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        self._left = memoryview(b"")
        assert self.ask(Opcode.STARTUP, STARTUP_BODY) == Opcode.READY

    def ask(self, opcode: Opcode, body: bytes) -> int:
        """The opcode of the response."""
        self.socket.sendall(request(opcode, body))
        header = self._read(HEADER_BYTES)
        _, _, _, answered, size = HEADER.unpack(header)
        self._read(size)
        return int(answered)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the node closed the connection"
            data += more
        return data

    def begin(self, frame: bytes) -> None:
        self.socket.setblocking(False)
        self._left = memoryview(frame)

    def send_more(self) -> None:
        """As much as the node takes."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._left:
                self._left = self._left[self.socket.send(self._left) :]

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, compiled_once: None) -> Iterator[tuple[psutil.Process, RawClient]]:
    made = LocalNodes(tmp_path_factory.mktemp("memory") / "data", 1, SETTINGS)
    try:
        made.start_all()
        options = made.nodes[0].options
        eventually(lambda: takes_clients(options.address, options.ports.cql), "it takes clients")
        client = RawClient((options.address, options.ports.cql))
        yield psutil.Process(made.pid("shard-0")), client
        client.socket.close()
    finally:
        made.end_all()


def takes_clients(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5) as one:
            one.sendall(request(Opcode.OPTIONS))
            return bool(one.recv(1))
    except OSError:
        return False


def test_partial_frames_stay_within_the_memory_for_requests(shard: tuple[psutil.Process, RawClient]) -> None:
    process, first = shard
    address = first.socket.getpeername()
    with contextlib.ExitStack() as sockets:
        clients = [RawClient(address) for _ in range(FRAMES)]
        for client in clients:
            sockets.callback(client.socket.close)
        _check_partial_frames(process, first, clients)


def _check_partial_frames(process: psutil.Process, first: RawClient, clients: list[RawClient]) -> None:
    before = process.memory_info().rss
    unfinished = request(Opcode.QUERY, bytes(FRAME_BYTES))[:-1024]
    for client in clients:
        client.begin(unfinished)
    most = before
    late: list[RawClient] = []

    def some_are_closed() -> bool:
        nonlocal most
        for client in clients:
            if client not in late:
                client.send_more()
                if client.is_closed():
                    late.append(client)
        most = max(most, process.memory_info().rss)
        return len(late) >= 4

    eventually(some_are_closed, "those that were read first and did not end are closed, and others are read")
    assert most - before <= GROWTH * REQUESTS_BYTES
    assert first.ask(Opcode.OPTIONS, b"") == Opcode.SUPPORTED, "others are served meanwhile"


def test_prepared_texts_stay_within_the_memory_for_statements(shard: tuple[psutil.Process, RawClient]) -> None:
    process, client = shard
    before = process.memory_info().rss
    for number in range(TEXTS):
        text = f"SELECT * FROM system.local WHERE key = '{number}{'x' * TEXT_BYTES}'"
        assert client.ask(Opcode.PREPARE, long_string(text)) == Opcode.RESULT
    assert process.memory_info().rss - before <= GROWTH * CACHE_BYTES

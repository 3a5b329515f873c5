"""Real sockets: many clients, slow and misbehaving ones, TLS, and a real driver."""

import asyncio
import random
import socket
import ssl
import struct
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest as DriverInvalidRequest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import RoundRobinPolicy
from tests.async_tests import real_time, runs_in
from tests.unit.cql.protocol_rig import (
    AT_ONCE,
    STARTUP_BODY,
    ConnectionRig,
    ScriptedExecutor,
    error_of,
    execute,
    frames_of,
    query,
    request,
)
from tests.unit.runtime.tls_rig import Cluster as Certificates

from ebla.cql.authentication import PasswordAuthentication, hash_password
from ebla.cql.executor import ClientState, PendingResponse, StartedRequest
from ebla.cql.server.cql_server import CqlServer
from ebla.model.cql_types import SCALARS, CqlType, SetType
from ebla.model.error_codes import CqlCode
from ebla.model.errors import InvalidRequest
from ebla.model.identity import Address
from ebla.model.values import encode
from ebla.observe.event_reporter import discard_event
from ebla.options import NodeLimits
from ebla.runtime.sockets import listen_tcp
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tls import CqlServerTls
from ebla.wire.cql.frames import HEADER_BYTES, CqlFrame, Opcode
from ebla.wire.cql.messages import ColumnSpec, CqlResponse, QueryParameters, Rows

WAIT_S = 20


def own_address() -> str:
    return f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"


@asynccontextmanager
async def serving(
    parted: ConnectionRig, tls: Callable[[], ssl.SSLContext] | None = None, **bounds: int
) -> AsyncIterator[tuple[CqlServer, Address]]:
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        server = CqlServer(parted.parts(tasks), tls, **bounds)
        listener = listen_tcp(Address(own_address(), 0), 64)
        server.listen(listener)
        host, port = listener.getsockname()
        try:
            yield server, Address(host, port)
        finally:
            server.close("the test ends")
            server.abort()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, *frames: bytes) -> CqlFrame:
        """The next answer."""
        self.writer.write(b"".join(frames))
        return await self.next()

    async def next(self) -> CqlFrame:
        header = await self.reader.readexactly(HEADER_BYTES)
        body = await self.reader.readexactly(int.from_bytes(header[5:]))
        (frame,) = frames_of(header + body)
        return frame

    async def greet(self) -> None:
        assert (await self.ask(request(Opcode.STARTUP, STARTUP_BODY))).opcode == Opcode.READY

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def client_of(address: Address, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def until(holds: Callable[[], bool]) -> None:
    """Bounded by the timeout of the test."""
    while not holds():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.005)


def run(work: Callable[[CqlServer, Address], Coroutine[Any, Any, None]], parted: ConnectionRig, **bounds: int) -> None:
    async def main() -> None:
        async with serving(parted, None, **bounds) as (server, address):
            await work(server, address)

    asyncio.run(main())


@runs_in(run, ConnectionRig())
async def test_requests_of_many_clients(server: CqlServer, address: Address, /) -> None:
    async def one(number: int) -> None:
        async with client_of(address) as client:
            await client.greet()
            for stream in range(20):
                answer = await client.ask(execute(b"x", stream=number * 20 + stream))
                assert (answer.stream, answer.opcode) == (number * 20 + stream, Opcode.RESULT)

    async with asyncio.TaskGroup() as clients:
        for number in range(10):
            clients.create_task(one(number))
    await until(lambda: server.is_idle)
    assert len(server.client_rows()) == 0


@runs_in(run, ConnectionRig())
async def test_it_is_known_who_is_connected(server: CqlServer, address: Address, /) -> None:
    async with client_of(address) as client:
        await client.greet()
        (known,) = server.client_rows()
        assert known["port"] == client.writer.get_extra_info("sockname")[1]
        assert not known["ssl_enabled"]


@pytest.mark.parametrize(
    "sent",
    [b"", b"\4", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", request(Opcode.OPTIONS)[:7]],
    ids=["nothing", "a byte", "http", "tls", "half a header"],
)
def test_probes_and_strangers_do_no_harm(sent: bytes) -> None:
    async def work(server: CqlServer, address: Address) -> None:
        async with client_of(address) as stranger:
            stranger.writer.write(sent)
            await stranger.writer.drain()
        async with client_of(address) as client:
            await client.greet()
            await until(lambda: len(server.client_rows()) == 1)

    run(work, ConnectionRig())


@runs_in(run, ConnectionRig(), greeting_ms=50)
async def test_a_client_that_says_nothing_is_closed_and_an_idle_one_is_not(_: CqlServer, address: Address, /) -> None:
    async with client_of(address) as silent, client_of(address) as idle:
        await idle.greet()
        assert await silent.is_closed()
        assert (await idle.ask(query("x"))).opcode == Opcode.RESULT


def test_one_connection_too_many_is_refused() -> None:
    async def work(_: CqlServer, address: Address) -> None:
        async with client_of(address) as first:
            await first.greet()
            async with client_of(address) as second:
                assert await second.is_closed()
            assert (await first.ask(query("x"))).opcode == Opcode.RESULT

    parted = ConnectionRig(limits=NodeLimits(cql_connections_max=1))
    run(work, parted)
    assert [event for event, _ in parted.reports] == ["cql.connection_refused"]


BIG = CqlResponse(Rows((ColumnSpec(keyspace="k", table="t", name="c", type=SCALARS["blob"]),), [[b"x" * 100_000]]))


def test_a_client_that_does_not_read_costs_a_bounded_memory() -> None:
    parted = ConnectionRig(execution=ScriptedExecutor(lambda _: BIG))

    async def work(server: CqlServer, address: Address) -> None:
        async with client_of(address) as lazy:
            await lazy.greet()
            lazy.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
            frames = b"".join(execute(b"big", stream=number % 1000) for number in range(2000))
            lazy.writer.write(frames)
            (one,) = list(server._sockets)
            await until(lambda: one.queued_bytes > 200_000)
            assert one.queued_bytes < 2_000_000
            assert len(parted.execution.asked) < 1000
            lazy.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            for _ in range(2000):
                assert len((await lazy.next()).body) > 100_000
        assert len(parted.execution.asked) == 2000

    run(work, parted, write_high_bytes=200_000)


def test_a_client_that_never_reads_is_cut_off() -> None:
    parted = ConnectionRig(execution=ScriptedExecutor(lambda _: BIG))

    async def work(server: CqlServer, address: Address) -> None:
        async with client_of(address) as lazy:
            await lazy.greet()
            lazy.writer.transport.pause_reading()  # type: ignore[attr-defined]  # as above
            lazy.writer.write(b"".join(execute(b"big", stream=number) for number in range(200)))
            await until(lambda: bool(server._sockets) and next(iter(server._sockets)).queued_bytes > 0)
            await until(lambda: server.is_idle)

    run(work, parted, write_high_bytes=10_000, write_stall_ms=50)
    assert "cql.client_stalled" in [event for event, _ in parted.reports]


def test_a_large_request_arrives_whole_and_one_too_large_is_refused() -> None:
    parted = ConnectionRig(limits=NodeLimits(cql_request_bytes_max=3_000_000, cql_statement_bytes_max=3_000_000))

    async def work(_: CqlServer, address: Address) -> None:
        async with client_of(address) as client:
            await client.greet()
            assert (await client.ask(query("x" * 2_900_000))).opcode == Opcode.RESULT
            assert error_of(await client.ask(query("x" * 3_000_000)))[0] == CqlCode.PROTOCOL_ERROR
            assert await client.is_closed()

    run(work, parted)
    assert [len(text) for text in parted.execution.asked] == [2_900_000]


def test_a_stop_lets_what_is_under_way_end() -> None:
    made: list[asyncio.Future[None]] = []

    def begin(_: str | bytes) -> StartedRequest:
        made.append(asyncio.get_running_loop().create_future())
        return PendingResponse(made[-1], AT_ONCE)

    async def work(server: CqlServer, address: Address) -> None:
        async with client_of(address) as busy, client_of(address) as idle:
            await busy.greet()
            await idle.greet()
            busy.writer.write(execute(stream=3))
            await until(lambda: bool(made))
            server.close("the shard stops")
            assert await idle.is_closed()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(address.host, address.port)
            made[0].set_result(None)
            assert (await busy.next()).stream == 3
            assert await busy.is_closed()
            await until(lambda: server.is_idle)

    run(work, ConnectionRig(execution=ScriptedExecutor(begin)))


@runs_in(run, ConnectionRig())
async def test_it_listens_again_after_it_was_suspended(server: CqlServer, address: Address, /) -> None:
    """As when its node is excluded, and recovered later."""
    async with client_of(address) as client:
        await client.greet()
        server.suspend("this node is excluded")
        assert await client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)
    server.listen(listen_tcp(address, 8))
    async with client_of(address) as client:
        await client.greet()


@runs_in(run, ConnectionRig())
async def test_a_connection_that_somebody_else_accepted(server: CqlServer, _: Address, /) -> None:
    passed: list[socket.socket] = []

    def pass_on(accepted: socket.socket) -> bool:
        passed.append(accepted.dup())
        return True

    listener = listen_tcp(Address(own_address(), 0), 8)
    host, port = listener.getsockname()
    server.listen(listener, pass_on)
    async with client_of(Address(host, port)) as client:
        await until(lambda: bool(passed))
        assert len(server.client_rows()) == 0
        server.take(passed[0])
        await client.greet()
        assert len(server.client_rows()) == 1


# ---- TLS


@runs_in(real_time)
async def test_clients_by_tls(tmp_path: Path) -> None:
    folder = Certificates(tmp_path).folder(1)
    of_client = ssl.create_default_context(cafile=str(folder.path / "authority.pem"))
    of_client.check_hostname = False  # certificates name hosts by their ids
    async with serving(ConnectionRig(), tls=CqlServerTls(folder).context) as (server, address):
        async with client_of(address, of_client) as client:
            await client.greet()
            assert (await client.ask(query("x" * 40_000))).opcode == Opcode.RESULT
            (known,) = server.client_rows()
            assert str(known["ssl_protocol"]).startswith("TLSv1.")
            assert known["ssl_cipher_suite"]
        async with client_of(address) as plain:
            plain.writer.write(request(Opcode.OPTIONS))
            assert await plain.is_closed()


# ---- a driver


class SystemExecution(ScriptedExecutor):
    """Answers the queries of a connecting driver; everything else echoes the statement's text."""

    def __init__(self) -> None:
        super().__init__()
        self.address = ""

    def begin_query(self, _session: ClientState, text: str, parameters: QueryParameters) -> StartedRequest:
        self.asked.append(text)
        table = text.lower().partition(" from ")[2].split(" ")[0]
        if table == "system.local":
            return CqlResponse(self._local())
        if table.startswith("system"):
            return CqlResponse(Rows((ColumnSpec(keyspace="system", table="t", name="c", type=SCALARS["text"]),), []))
        if text == "fail":
            raise InvalidRequest("not allowed here")
        return CqlResponse(
            Rows((ColumnSpec(keyspace="k", table="t", name="text", type=SCALARS["text"]),), [[text.encode()]]),
            ("beware",),
        )

    def begin_execute(self, session: ClientState, statement_id: bytes, parameters: QueryParameters) -> StartedRequest:
        return self.begin_query(session, statement_id.decode(), parameters)

    def _local(self) -> Rows:
        text = SCALARS["text"]
        columns: Sequence[tuple[str, CqlType, Any]] = (
            ("key", text, "local"),
            ("cluster_name", text, "test"),
            ("data_center", text, "dc1"),
            ("rack", text, "rack1"),
            ("release_version", text, "4.0.0"),
            ("partitioner", text, "org.apache.cassandra.dht.Murmur3Partitioner"),
            ("host_id", SCALARS["uuid"], uuid.UUID(int=5)),
            ("rpc_address", SCALARS["inet"], self.address),
            ("schema_version", SCALARS["uuid"], uuid.UUID(int=6)),
            ("tokens", SetType(text, False), {"0"}),
        )
        specs = tuple(ColumnSpec(keyspace="system", table="local", name=name, type=kind) for name, kind, _ in columns)
        return Rows(specs, [[encode(kind, value) for _, kind, value in columns]])


@contextmanager
def in_background(parted: ConnectionRig) -> Iterator[Address]:
    """A server in its own thread, since drivers block."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, Address]] = []
    ready = threading.Event()

    async def main() -> None:
        async with serving(parted) as (_, address):
            stop = asyncio.Event()
            parted.execution.address = address.host
            started.append((asyncio.get_running_loop(), stop, address))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(WAIT_S)
    loop, stop, address = started[0]
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)


def cluster_at(address: Address, **changes: Any) -> Cluster:
    return Cluster(
        [address.host],
        port=address.port,
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())},
        shard_aware_options={"disable": True},
        **changes,
    )


@pytest.mark.parametrize("compression", [False, "lz4"])
def test_a_driver_connects_and_asks(compression: object) -> None:
    parted = ConnectionRig(execution=SystemExecution())
    with in_background(parted) as address:
        cluster = cluster_at(address, protocol_version=4, compression=compression)
        try:
            session = cluster.connect()
            for text in ("short", "long" * 1000):
                answer = session.execute(text)
                assert answer.one().text == text
                assert answer.response_future.warnings == ["beware"]
            prepared = session.prepare("prepared")
            assert [session.execute(prepared).one().text for _ in range(3)] == ["prepared"] * 3
            with pytest.raises(DriverInvalidRequest, match="not allowed here"):
                session.execute("fail")
            futures = [session.execute_async(f"number {number}") for number in range(200)]
            assert [future.result().one().text for future in futures] == [f"number {n}" for n in range(200)]
        finally:
            cluster.shutdown()


def test_a_driver_steps_down_to_our_version() -> None:
    parted = ConnectionRig(execution=SystemExecution())
    with in_background(parted) as address:
        cluster = cluster_at(address)
        try:
            assert cluster.connect().execute("x").one().text == "x"
            assert cluster.protocol_version == 4
        finally:
            cluster.shutdown()


def test_a_driver_logs_in() -> None:
    rng = SystemRng()

    with_password = ConnectionRig(
        execution=SystemExecution(),
        login=PasswordAuthentication({"scribe": hash_password("clay", rng)}, rng, discard_event).authenticate,
    )
    with in_background(with_password) as address:
        cluster = cluster_at(address, protocol_version=4, auth_provider=PlainTextAuthProvider("scribe", "clay"))
        try:
            assert cluster.connect().execute("x").one().text == "x"
        finally:
            cluster.shutdown()
        stranger = cluster_at(address, protocol_version=4, auth_provider=PlainTextAuthProvider("scribe", "wax"))
        try:
            with pytest.raises(NoHostAvailable, match="password are incorrect"):
                stranger.connect()
        finally:
            stranger.shutdown()


@runs_in(run, ConnectionRig())
async def test_a_frame_that_is_cut_off_ends_with_its_connection(server: CqlServer, address: Address, /) -> None:
    async with client_of(address) as client:
        await client.greet()
        client.writer.write(query("x" * 5000)[:4000])
        await client.writer.drain()
    await until(lambda: server.is_idle)
    assert server.deps.memory.bytes == 0


def test_an_answer_larger_than_everything_is_sent_whole() -> None:
    huge = CqlResponse(Rows(BIG.result.columns, [[b"y" * 5_000_000]]))  # type: ignore[union-attr]  # a rows result

    async def work(_: CqlServer, address: Address) -> None:
        async with client_of(address) as client:
            await client.greet()
            answer = await client.ask(execute())
            assert answer.body.endswith(struct.pack(">i", 5_000_000) + b"y" * 5_000_000)

    run(work, ConnectionRig(execution=ScriptedExecutor(lambda _: huge)), write_high_bytes=1000)

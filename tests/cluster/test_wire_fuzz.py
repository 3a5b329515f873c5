"""Hostile peers against a real server: a good client still gets answers, and memory stays bounded."""

import asyncio
import random
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.wire_fuzz_server import HEALTH, HealthAnswer, HealthRequest
from tests.unit.runtime.tls_rig import Cluster, free_address, introduction
from tests.unit.wire.rig import ECHO, SLOW, EchoAnswer, EchoRequest

from ebla.model.identity import Address
from ebla.observe.event_reporter import discard_event
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import HelloFrame, Lane, RequestFrame, encode, with_body
from ebla.wire.peers import PeersContext, connect

MEMORY_GROWTH_MAX = 96 * 1024 * 1024
GOOD_ANSWERS = 20
"""An attack goes on until the good client has had this many answers."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Victim:
    """The server under attack."""

    def __init__(self, host: str, plain_port: int, tls_port: int, client: TlsFolder) -> None:
        self.plain = Address(host, plain_port)
        self.encrypted = Address(host, tls_port)
        self.client = client
        self.rng = random.Random(1)

    async def open(self, address: Address | None = None) -> Streams:
        place = address or self.plain
        return await asyncio.open_connection(place.host, place.port)


Attack = Callable[[Victim], Awaitable[None]]


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


GREETING = framed(
    encode(HelloFrame(oldest=1, newest=1, lane=Lane.CONTROL, frame_bytes_max=65536, introduction=introduction(5)))
)


def request(number: int, text: str, verb: int = ECHO.number) -> bytes:
    return framed(encode(RequestFrame(id=number, verb=verb, remaining_ms=20_000, body=with_body(EchoRequest(text)))))


async def end(streams: Streams) -> None:
    streams[1].close()
    try:
        await streams[1].wait_closed()
    except OSError:
        pass  # the server disconnected it, as it should


async def write_all(streams: Streams, data: bytes) -> None:
    """Sends until the server closes the connection."""
    try:
        streams[1].write(data)
        await streams[1].drain()
    except OSError:
        pass


async def random_bytes(victim: Victim) -> None:
    for _ in range(40):
        for address in (victim.plain, victim.encrypted):
            streams = await victim.open(address)
            await write_all(streams, victim.rng.randbytes(victim.rng.randrange(1, 5000)))
            await end(streams)


async def mutated_frames(victim: Victim) -> None:
    for _ in range(60):
        streams = await victim.open()
        data = bytearray(b"".join(request(number, "clay" * 20) for number in range(1, 30)))
        for _ in range(victim.rng.randrange(1, 6)):
            data[victim.rng.randrange(0, len(data))] = victim.rng.randrange(0, 256)
        await write_all(streams, GREETING + bytes(data))
        await end(streams)


async def giant_lengths(victim: Victim) -> None:
    for length in (0, 2**24 + 1, 2**31, 2**32 - 1):
        for before in (b"", GREETING):
            reader, writer = await victim.open()
            await write_all((reader, writer), before + struct.pack(">I", length) + b"x" * 100)
            async with asyncio.timeout(60):
                assert len(await _read_until_end(reader)) < 1000
            await end((reader, writer))


async def _read_until_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def half_open(victim: Victim) -> None:
    """Opens far more silent connections than may wait for their greeting, with and without TLS."""
    streams = [await victim.open(address) for _ in range(120) for address in (victim.plain, victim.encrypted)]
    await asyncio.sleep(0.2)
    for each in streams:
        await end(each)


async def dribble(victim: Victim) -> None:
    """Sends one byte at a time of a frame with the largest allowed size."""
    streams = [await victim.open() for _ in range(10)]
    for each in streams:
        await write_all(each, GREETING + struct.pack(">I", 16 * 1024 * 1024))
    for _ in range(50):
        for each in streams:
            await write_all(each, b"x")
    for each in streams:
        await end(each)


FLOOD = [b"".join(request(first + n, "y" * 200) for n in range(500)) for first in range(1, 10_000, 500)]


async def flood(victim: Victim) -> None:
    """Sends requests without end, and reads the answers."""

    async def one() -> None:
        streams = await victim.open()
        await write_all(streams, GREETING)
        reading = asyncio.ensure_future(_read_until_end(streams[0]))
        for piece in FLOOD:
            await write_all(streams, piece)
        streams[1].write_eof()
        assert len(await reading) > len(FLOOD) * 500 * 200
        await end(streams)

    await asyncio.gather(*(one() for _ in range(4)))


async def flood_of_slow_work(victim: Victim) -> None:
    """Starts more work than one connection may have, for longer than the test lasts."""
    streams = await victim.open()
    await write_all(streams, GREETING + b"".join(request(n, "y" * 200, SLOW.number) for n in range(1, 20_000)))
    await end(streams)


async def never_read(victim: Victim) -> None:
    """Requests large answers and reads none."""
    streams = await victim.open()
    streams[1].transport.pause_reading()  # type: ignore[attr-defined]  # a reading transport
    await write_all(streams, GREETING)
    number = 1
    for _ in range(200):
        if streams[1].is_closing():
            break
        streams[1].write(b"".join(request(number + n, "y" * 40_000) for n in range(10)))
        number += 10
        await asyncio.sleep(0.005)
    streams[1].transport.abort()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    cluster = Cluster(tmp_path)
    folder, client = cluster.folder(1), cluster.folder(2)
    host = free_address().host
    command = [sys.executable, "-m", "tests.cluster.wire_fuzz_server", host, str(folder.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ports = [int(process.stdout.readline()) for _ in range(2)]
        yield Victim(host, ports[0], ports[1], client)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@asynccontextmanager
async def good_client(victim: Victim) -> AsyncIterator[RpcClientConnection]:
    async with TcpTransport(NodeTls(victim.client), discard_event) as transport:
        context = PeersContext(
            transport=transport,
            rng=SystemRng(),
            introduction=introduction(2),
            report=discard_event,
        )
        caller, _ = await connect(context, victim.encrypted, ConnectionTarget(Lane.CONTROL, introduction(1).host))
        yield caller
        caller.close("the test is over")


async def health(caller: RpcClientConnection) -> HealthAnswer:
    return await caller.call(HEALTH, HealthRequest(), 10_000)


ATTACKS: tuple[tuple[Attack, tuple[str, ...]], ...] = (
    (random_bytes, ("transport.link_violated", "transport.tls_failed")),
    (mutated_frames, ("wire.link_ended",)),
    (giant_lengths, ("transport.link_violated",)),
    (half_open, ("wire.link_ended", "transport.tls_failed")),
    (dribble, ()),
    (flood, ()),
    (flood_of_slow_work, ()),
    (never_read, ("transport.link_violated",)),
)
"""Each attack with what the server's log must say about it."""


@pytest.mark.parametrize(("attack", "reported"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
def test_a_good_client_is_served_through_an_attack(attack: Attack, reported: tuple[str, ...], victim: Victim) -> None:
    async def attack_on(good_answers: list[int]) -> None:
        while len(good_answers) < GOOD_ANSWERS:
            await attack(victim)

    async def run() -> None:
        async with asyncio.timeout(60), good_client(victim) as caller:
            before = await health(caller)
            good_answers: list[int] = []
            under_attack = asyncio.ensure_future(attack_on(good_answers))
            most = before.rss_bytes
            while not under_attack.done():
                text = str(len(good_answers))
                assert await caller.call(ECHO, EchoRequest(text), 10_000) == EchoAnswer(text)
                good_answers.append(len(good_answers))
                most = max(most, (await health(caller)).rss_bytes)
            await under_attack
            after = await health(caller)
            assert after.problems == ()
            assert [event for event in reported if event not in after.reports] == []
            assert max(most, after.rss_bytes) - before.rss_bytes < MEMORY_GROWTH_MAX

    asyncio.run(run())

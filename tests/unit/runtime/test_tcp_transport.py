"""Links over real sockets: framing, gathering, back-pressure, endings, Unix sockets of the owner alone."""

import asyncio
import importlib.util
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.runtime.tls_rig import Cluster, Reports, calling, free_address, host, serving
from tests.unit.wire.rig import ECHO, EchoAnswer, EchoRequest

from ebla.model.errors import InvalidRequest, Unreachable
from ebla.model.identity import Address
from ebla.ports.transport import Link
from ebla.runtime.tcp_transport import TcpLink, TcpTransport, TransportLimits
from ebla.runtime.tls import JoiningNodeTls

Loop = Callable[[], asyncio.AbstractEventLoop]


def loops() -> list[object]:
    """Stock asyncio, and uvloop where it is installed: both must behave the same."""
    found: list[object] = [pytest.param(asyncio.new_event_loop, id="asyncio")]
    if importlib.util.find_spec("uvloop"):
        found.append(pytest.param(importlib.import_module("uvloop").new_event_loop, id="uvloop"))
    return found


each_loop = pytest.mark.parametrize("loop", loops())


class Ear:
    """Hears everything on a link. `answer` is sent for each frame."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.frames: list[bytes] = []
        self.cause: str | None = None
        self.ended = asyncio.Event()
        self.heard = asyncio.Event()
        self.waiting_for = 1

    def frame_received(self, frame: bytes) -> None:
        assert self.cause is None
        self.frames.append(frame)
        if len(self.frames) >= self.waiting_for:
            self.heard.set()

    def link_closed(self, cause: str) -> None:
        assert self.cause is None
        self.cause = cause
        self.ended.set()

    async def wait_frames(self, count: int) -> None:
        self.waiting_for = count
        if len(self.frames) < count:
            self.heard.clear()
            await self.heard.wait()


class Pair:
    """Two ends of one link."""

    def __init__(self) -> None:
        self.near: Ear
        self.far: Ear
        self.accepted = asyncio.Event()

    def open_far(self, link: Link) -> Ear:
        self.far = Ear(link)
        self.accepted.set()
        return self.far

    def open_near(self, link: Link) -> Ear:
        self.near = Ear(link)
        return self.near


async def make_pair(transport: TcpTransport, address: Address | None = None) -> Pair:
    pair = Pair()
    listening = await transport.listen(address or free_address(), pair.open_far)
    await transport.connect(listening.address, pair.open_near)
    await pair.accepted.wait()
    return pair


def plain(limits: TransportLimits | None = None, reports: Reports | None = None) -> TcpTransport:
    return TcpTransport(None, reports or Reports(), limits or TransportLimits(), plain=True)


def run(loop: Loop, body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await body()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(bounded())


@each_loop
@pytest.mark.parametrize("kind", ["plain", "tls", "unix"])
def test_frames_of_all_sizes_arrive_whole_and_in_order(loop: Loop, kind: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    async def body() -> None:
        tls = Cluster(tmp_path).tls(1) if kind == "tls" else None
        address = Address(str(tmp_path / "socket")) if kind == "unix" else None
        async with TcpTransport(tls, Reports(), plain=kind == "plain") as transport:
            pair = await make_pair(transport, address)
            sizes = [1, 2, 3, 4, 5, 200, 8187, 8188, 8189, 8192, 65_536, 300_000, 3_000_000, 7]
            frames = [bytes([number]) * size for number, size in enumerate(sizes)]
            for frame in frames:
                pair.near.link.send(frame)
                pair.far.link.send(frame)
            await pair.near.wait_frames(len(frames))
            await pair.far.wait_frames(len(frames))
            assert pair.far.frames == frames
            assert pair.near.frames == frames
            assert pair.far.link.peer_host == (host(1) if kind == "tls" else None)
            await pair.near.link.wait_drained()
            pair.near.link.close("enough")
            await pair.far.ended.wait()
            await pair.near.ended.wait()
            assert pair.near.cause == "enough"

    run(loop, body)


@each_loop
def test_what_was_sent_before_a_close_still_arrives(loop: Loop) -> None:
    async def body() -> None:
        async with plain() as transport:
            pair = await make_pair(transport)
            for number in range(100):
                pair.near.link.send(b"%d" % number)
            pair.near.link.close("done")
            pair.near.link.send(b"after the close")
            await pair.far.ended.wait()
            assert pair.far.frames == [b"%d" % number for number in range(100)]
            assert pair.far.cause == "the peer ended the connection"

    run(loop, body)


def test_frames_of_one_turn_leave_in_one_write() -> None:
    async def body() -> None:
        async with plain() as transport:
            pair = await make_pair(transport)
            writes: list[int] = []
            inner = pair.near.link._transport  # type: ignore[attr-defined]  # to count its writes
            real = inner.write

            def write(data: bytes) -> None:
                writes.append(len(data))
                real(data)

            inner.write = write
            for _ in range(64):
                pair.near.link.send(b"x" * 200)
            assert pair.near.link.queued_bytes == 64 * 204
            await pair.far.wait_frames(64)
            assert writes == [64 * 204]
            assert pair.near.link.queued_bytes == 0

    run(asyncio.new_event_loop, body)


@each_loop
@pytest.mark.parametrize("announced", [0, 5000, 2**31, 2**32 - 1])
def test_a_length_over_the_limit_ends_the_link_before_its_bytes_come(loop: Loop, announced: int) -> None:
    async def body() -> None:
        reports = Reports()
        async with plain(TransportLimits(frame_bytes_max=4096, first_frame_bytes_max=4096), reports) as transport:
            opened: list[Ear] = []

            def on_open(link: Link) -> Ear:
                opened.append(Ear(link))
                return opened[0]

            listening = await transport.listen(free_address(), on_open)
            reader, writer = await asyncio.open_connection(listening.address.host, listening.address.port)
            writer.write(struct.pack(">I", 3) + b"abc" + struct.pack(">I", announced))
            assert await reader.read() == b""
            assert opened[0].frames == [b"abc"]
            await opened[0].ended.wait()
            assert f"a frame of {announced} bytes" in str(opened[0].cause)
            assert f"a frame of {announced} bytes" in reports.text()
            writer.close()
            await writer.wait_closed()

    run(loop, body)


def test_the_first_frame_must_be_small() -> None:
    async def body() -> None:
        reports = Reports()
        async with plain(TransportLimits(first_frame_bytes_max=1000), reports) as transport:
            pair = await make_pair(transport)
            pair.near.link.send(b"x" * 999)
            pair.near.link.send(b"x" * 100_000)
            await pair.far.wait_frames(2)
            other = await make_pair(transport)
            other.near.link.send(b"x" * 1001)
            await other.near.ended.wait()
            assert other.far.frames == []
            assert "a frame of 1001 bytes" in reports.text()

    run(asyncio.new_event_loop, body)


@each_loop
def test_a_peer_without_a_certificate_never_sends_much_at_once(loop: Loop, tmp_path: Path) -> None:
    """Any peer may open a link to join: sixteen megabytes each would exhaust the node's memory."""

    async def body() -> None:
        reports, pair = Reports(), Pair()
        limits = TransportLimits(first_frame_bytes_max=1000)
        async with TcpTransport(Cluster(tmp_path).tls(1), reports, limits) as transport:
            listening = await transport.listen(free_address(), Ear, pair.open_far)
            async with TcpTransport(JoiningNodeTls(None), reports) as newcomer:
                await newcomer.connect(listening.address, pair.open_near)
                pair.near.link.send(b"x" * 999)
                pair.near.link.send(b"x" * 1001)
                await pair.near.ended.wait()
        assert [len(frame) for frame in pair.far.frames] == [999]
        assert "a frame of 1001 bytes was announced, 1000 is the limit" in reports.text()

    run(loop, body)


@each_loop
def test_the_kernel_watches_for_peers_that_vanished(loop: Loop, tmp_path: Path) -> None:
    """At both ends, under TLS: a lane that nothing is asked on has nothing else to notice by."""

    async def body() -> None:
        limits = TransportLimits(unacknowledged_ms=8_000)
        cluster, pair = Cluster(tmp_path), Pair()
        async with TcpTransport(cluster.tls(1), Reports(), limits) as transport:
            listening = await transport.listen(free_address(), pair.open_far)
            await transport.connect(listening.address, pair.open_near)
            await pair.accepted.wait()
            for ear in (pair.near, pair.far):
                assert isinstance(ear.link, TcpLink)
                assert ear.link._transport is not None
                sock = ear.link._transport.get_extra_info("socket")
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                found = [
                    sock.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
                ]
                assert found == [8_000, 4, 2]

    run(loop, body)


@each_loop
def test_a_slow_reader_holds_the_sender_and_is_released(loop: Loop) -> None:
    async def body() -> None:
        limits = TransportLimits(write_high_bytes=200_000, write_low_bytes=50_000)
        async with plain(limits) as transport:
            pair = await make_pair(transport)
            pair.far.link._transport.pause_reading()  # type: ignore[attr-defined]  # as a peer that is busy
            sent = 0
            while pair.near.link.queued_bytes < 400_000:
                pair.near.link.send(b"z" * 50_000)
                sent += 1
                await asyncio.sleep(0)
            drained = asyncio.ensure_future(pair.near.link.wait_drained())
            await asyncio.sleep(0)
            assert not drained.done()
            pair.far.link._transport.resume_reading()  # type: ignore[attr-defined]  # as above
            await drained
            await pair.far.wait_frames(sent)

    run(loop, body)


@each_loop
def test_a_peer_that_never_reads_is_cut_off(loop: Loop) -> None:
    async def body() -> None:
        reports = Reports()
        limits = TransportLimits(write_high_bytes=100_000, write_low_bytes=50_000, write_stall_ms=50)
        async with plain(limits, reports) as transport:
            opened: list[Ear] = []
            accepted = asyncio.Event()

            def on_open(link: Link) -> Ear:
                opened.append(Ear(link))
                accepted.set()
                return opened[0]

            listening = await transport.listen(free_address(), on_open)
            silent = socket.create_connection((listening.address.host, listening.address.port))
            try:
                await accepted.wait()
                while opened[0].link.queued_bytes < 200_000 and opened[0].cause is None:
                    opened[0].link.send(b"z" * 50_000)
                    await asyncio.sleep(0)
                await opened[0].ended.wait()
                assert "took no byte" in str(opened[0].cause)
                assert "took no byte" in reports.text()
            finally:
                silent.close()

    run(loop, body)


@each_loop
def test_half_open_tls_is_ended(loop: Loop, tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(Cluster(tmp_path).tls(1), transport_limits=TransportLimits(handshake_ms=100)) as served:
            reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
            writer.write(b"\x16\x03")
            assert await reader.read() == b""
            await served.reports.wait_for_report()
            assert "transport.tls_failed" in served.reports.text()
            writer.close()
            await writer.wait_closed()

    run(loop, body)


@each_loop
def test_connections_being_opened_are_bounded(loop: Loop, tmp_path: Path) -> None:
    async def body() -> None:
        limits = TransportLimits(handshakes_max=3, handshake_ms=20_000)
        cluster = Cluster(tmp_path)
        async with serving(cluster.tls(1), transport_limits=limits) as served:
            place = (served.address.host, served.address.port)
            half_open = [await asyncio.open_connection(*place) for _ in range(3)]
            reader, writer = await asyncio.open_connection(*place)
            assert await reader.read() == b""
            assert "transport.connection_refused" in served.reports.text()
            for _, stream in [*half_open, (reader, writer)]:
                stream.close()
            await asyncio.wait(list(served.transport._opening))
            async with calling(cluster.tls(2), served) as (caller, _):
                assert await caller.call(ECHO, EchoRequest("room again"), 5000) == EchoAnswer("room again")

    run(loop, body)


@each_loop
def test_one_address_leaves_room_for_others(loop: Loop, tmp_path: Path) -> None:
    async def body() -> None:
        limits = TransportLimits(handshakes_per_host_max=3, handshake_ms=20_000)
        cluster = Cluster(tmp_path)
        async with serving(cluster.tls(1), transport_limits=limits) as served:
            place = (served.address.host, served.address.port)
            crowd = free_address().host
            half_open = [await asyncio.open_connection(*place, local_addr=(crowd, 0)) for _ in range(4)]
            assert await half_open[3][0].read() == b""
            assert "3 connections of this address are being opened already" in served.reports.text()
            async with calling(cluster.tls(2), served) as (caller, _):
                assert await caller.call(ECHO, EchoRequest("room"), 5000) == EchoAnswer("room")
            for _, stream in half_open:
                stream.close()

    run(loop, body)


@each_loop
def test_nobody_there_is_unreachable(loop: Loop) -> None:
    async def body() -> None:
        async with plain() as transport:
            with pytest.raises(Unreachable, match="refused"):
                await transport.connect(Address(free_address().host, 1), Ear)
            with pytest.raises(Unreachable, match="No such file"):
                await transport.connect(Address("/nowhere/socket"), Ear)

    run(loop, body)


def test_addresses_in_use_or_not_ours_are_told() -> None:
    async def body() -> None:
        async with plain() as transport:
            listening = await transport.listen(free_address(), Ear)
            with pytest.raises(InvalidRequest, match="in use"):
                await transport.listen(listening.address, Ear)
            with pytest.raises(InvalidRequest, match="cannot listen on 192"):
                await transport.listen(Address("192.0.2.1", 7000), Ear)
            await listening.close()
            await transport.listen(listening.address, Ear)

    run(asyncio.new_event_loop, body)


def test_between_nodes_certificates_are_a_must() -> None:
    async def body() -> None:
        async with TcpTransport(None, Reports()) as transport:
            with pytest.raises(InvalidRequest, match="certificates"):
                await transport.listen(free_address(), Ear)
            with pytest.raises(InvalidRequest, match="certificates"):
                await transport.connect(free_address(), Ear)

    run(asyncio.new_event_loop, body)


def test_unix_sockets_are_the_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    modes: list[int] = []

    async def body() -> None:
        address = Address(str(folder / "control"))
        async with TcpTransport(None, Reports()) as transport:
            with pytest.raises(InvalidRequest, match="0700"):
                await transport.listen(address, Ear)
            os.chmod(folder, 0o700)
            listening = await transport.listen(address, Ear)
            modes.append(stat.S_IMODE(os.stat(address.host).st_mode))
            with pytest.raises(InvalidRequest, match="in use"):
                await transport.listen(address, Ear)
            await listening.close()

    run(asyncio.new_event_loop, body)
    assert modes == [0o600]
    assert list(folder.iterdir()) == []


def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    async def body() -> None:
        address = Address(str(tmp_path / "control"))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(address.host)
        async with TcpTransport(None, Reports()) as transport:
            pair = await make_pair(transport, address)
            pair.near.link.send(b"hello")
            await pair.far.wait_frames(1)

    run(asyncio.new_event_loop, body)


@each_loop
def test_leaving_the_transport_closes_everything(loop: Loop) -> None:
    async def body() -> None:
        async with plain() as transport:
            pair = await make_pair(transport)
        assert pair.near.cause == "the process is stopping"
        assert pair.far.cause is not None

    run(loop, body)


def test_an_error_of_the_body_passes_unwrapped() -> None:
    async def body() -> None:
        async with plain() as transport:
            await make_pair(transport)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(asyncio.new_event_loop, body)


@each_loop
@pytest.mark.parametrize("kind", ["plain", "tls", "unix"])
def test_a_connect_given_up_as_it_succeeds_keeps_nothing_open(loop: Loop, kind: str, tmp_path: Path) -> None:
    """As a time limit does that ends in the very moment in which the connection is made. The loop closes such a
    connection without a word to its protocol, and the transport would wait for its end for ever."""
    tmp_path.chmod(0o700)

    async def body() -> None:
        tls = Cluster(tmp_path).tls(1) if kind == "tls" else None
        address = Address(str(tmp_path / "socket")) if kind == "unix" else free_address()
        near: list[Ear] = []

        def on_open(link: Link) -> Ear:
            near.append(Ear(link))
            connecting.cancel()
            return near[0]

        async with TcpTransport(tls, Reports(), plain=kind == "plain") as transport:
            listening = await transport.listen(address, Ear)
            connecting = asyncio.create_task(transport.connect(listening.address, on_open))
            await asyncio.wait([connecting])
            assert connecting.cancelled()
            await near[0].ended.wait()

    run(loop, body)

"""The Flight server: what tickets open, what streams read and write, and what happens to broken ones."""

import asyncio
import os
import sys
import threading
import time
import uuid
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.bulk.cut_proxy import cut_proxy
from tests.unit.bulk.flight_rig import ATTEMPT, QUICK, FlightRig, RigPlane, add_file, flight_rig, identity_of
from tests.unit.runtime.tls_rig import Cluster, free_address, host

from ebla.bulk.flight_server import FlightServer
from ebla.bulk.stream_service import IncomingPut
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.model.errors import (
    ConnectionLost,
    Corruption,
    DiskFull,
    EblaError,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Refused,
    Stale,
    Unreachable,
)
from ebla.model.identity import AttemptId
from ebla.model.transfers import StagedFile
from ebla.runtime.priorities import lower_thread_priority
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.transfers.flight_streams import FlightClientLimits
from ebla.wire.flight_format import BYTES_SCHEMA, bytes_batch, certificate_host_name
from ebla.wire.frames import encode
from ebla.wire.transfer_messages import FilesQuery, FlightGet, FlightPut

pytestmark = runs_in(real_time)

FILE = CheckpointFileRef(0, 0, "000007.sst")
SMALL = 1 << 16
CONTENT = os.urandom(3 * (1 << 16) + 77)


def moved(rig: FlightRig, *, name: str = "0/000007.sst", direct_read_bytes: int = 0) -> StagedFile:
    with FlightClient(rig.authority_pem, replace(QUICK, direct_read_bytes=direct_read_bytes)) as client:
        return client.move_file(rig.source(), FILE, rig.target(), ATTEMPT, name)


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 17) + 1])
async def test_a_file_comes_as_it_is(tmp_path: Path, size: int) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        content = os.urandom(size)
        add_file(rig, FILE.file, content)

        def read(client: FlightClient) -> tuple[bytes, list[int]]:
            stream = client.get_file(rig.source(), FILE)
            return b"".join(stream), stream.checksums

        assert await rig.ask(read) == (content, [zlib.crc32(content)])
        assert rig.stream_service.sent_bytes == size
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_a_file_goes_on_where_its_reader_stopped_and_its_checksum_is_of_all_of_it(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)
        for offset in (1, 1 << 16, len(CONTENT)):

            def read(client: FlightClient, offset: int = offset) -> tuple[bytes, list[int]]:
                stream = client.get_file(rig.source(), FILE, offset)
                return b"".join(stream), stream.checksums

            assert await rig.ask(read) == (CONTENT[offset:], [zlib.crc32(CONTENT)])
        with pytest.raises(InvalidRequest, match="none from"):
            await rig.ask(lambda client: list(client.get_file(rig.source(), FILE, len(CONTENT) + 1)))


@pytest.mark.parametrize("direct_read_bytes", [0, 1 << 20])
async def test_a_file_moves_from_checkpoint_to_staging(tmp_path: Path, direct_read_bytes: int) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)
        staged = await asyncio.to_thread(moved, rig, direct_read_bytes=direct_read_bytes)
        assert staged == StagedFile(name="0/000007.sst", size_bytes=len(CONTENT), checksum=zlib.crc32(CONTENT))
        assert rig.stream_service.staged("0/000007.sst") == CONTENT
        # Again, after it was whole: nothing is sent, and the answer is the same.
        sent = rig.stream_service.sent_bytes
        assert await asyncio.to_thread(moved, rig, direct_read_bytes=direct_read_bytes) == staged
        assert rig.stream_service.sent_bytes == sent
        await rig.wait_for(lambda: rig.stream_service.places == rig.stream_service.sources == 0)


# -- who may come in


async def test_tickets_open_what_they_name_until_they_end(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        add_file(rig, FILE.file, CONTENT)
        good = rig.source().ticket
        for ticket in (b"", b"x" * 60, good[:-1] + bytes([good[-1] ^ 1]), rig.target().ticket):
            with pytest.raises(Refused, match="ticket"):
                await rig.answer(rig.source(ticket=ticket), FilesQuery(part=0, layer=0, file=FILE.file))
        rig.stream_service.now_ms = 10_000
        with pytest.raises(Refused, match="expired"):
            await rig.ask(lambda client: list(client.get_file(rig.source(), FILE)))
        with pytest.raises(Refused, match="expired"):
            await rig.ask(lambda client: client.move_file(rig.source(), FILE, rig.target(), ATTEMPT, "0/x"))
        assert rig.server.streams == 0


async def test_only_files_of_the_checkpoint_are_given_out(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        add_file(rig, FILE.file, CONTENT)
        (tmp_path / "secret").write_bytes(b"secret")
        source = rig.source()
        for part, layer, file in ((0, 0, "../../secret"), (0, 0, "other"), (1, 0, "x"), (0, 9, "x"), (-1, 0, "x")):
            query = FilesQuery(part=part, layer=layer, file=file)
            with pytest.raises(NotFound, match="no file"):
                await rig.answer(source, query)


async def test_the_other_calls_of_flight_are_refused(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        location = flight.Location.for_grpc_tls(rig.address.host, rig.address.port)

        def ask() -> None:
            with flight.FlightClient(
                location, tls_root_certs=rig.authority_pem, override_hostname=certificate_host_name(host(1))
            ) as client:
                nothing = flight.FlightDescriptor.for_command(b"")
                for call in (
                    lambda: list(client.list_flights()),
                    lambda: list(client.list_actions()),
                    lambda: list(client.do_action(flight.Action("stop", b""))),
                    lambda: client.get_flight_info(nothing),
                ):
                    with pytest.raises(flight.FlightUnauthorizedError, match="not offered"):
                        call()
                with pytest.raises(pa.ArrowException, match="not offered"):
                    client.get_schema(nothing)
                with pytest.raises(flight.FlightServerError, match="not a query"):
                    client.do_get(flight.Ticket(b"hello")).read_all()

        await asyncio.to_thread(ask)


async def test_a_node_must_be_the_one_that_the_ticket_is_for(tmp_path: Path) -> None:
    """Another node of the same cluster has a certificate of the same authority, and another name in it."""
    async with flight_rig(tmp_path) as rig:
        add_file(rig, FILE.file, CONTENT)
        rig.server.reload(identity_of(rig.cluster.folder(2)))
        await rig.wait_for(lambda: rig.server._grpc_server is not None)
        with pytest.raises(Unreachable, match="not in peer certificate"):
            await rig.ask(lambda client: list(client.get_file(rig.source(), FILE)))


async def test_a_stranger_is_not_trusted(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        add_file(rig, FILE.file, CONTENT)
        (tmp_path / "other").mkdir()
        rig.cluster = Cluster(tmp_path / "other")
        with pytest.raises(Unreachable, match=r"(?i)certificate.verify.failed"):
            await rig.ask(lambda client: list(client.get_file(rig.source(), FILE)))


async def test_a_new_certificate_counts_for_new_connections_and_streams_go_on(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        content = os.urandom(20 << 20)
        add_file(rig, FILE.file, content)
        loop = asyncio.get_running_loop()

        def read(client: FlightClient) -> bytes:
            stream = iter(client.get_file(rig.source(), FILE))
            first = bytes(next(stream))
            asyncio.run_coroutine_threadsafe(renew(), loop).result(10)
            return first + b"".join(stream)

        async def renew() -> None:
            rig.server.reload(identity_of(rig.cluster.folder(1, days=9)))

        assert await rig.ask(read) == content
        await rig.wait_for(lambda: rig.server._grpc_server is not None)
        assert await rig.ask(lambda client: b"".join(client.get_file(rig.source(), FILE))) == content
        await rig.wait_for(lambda: not any(one.is_alive() for one in rig.server._closing))


# -- streams that end early


async def test_a_session_that_closes_in_the_middle_of_a_put_ends_it_at_the_next_batch(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)

        def close(place: IncomingPut) -> None:
            rig.stream_service.listed.clear()

        rig.stream_service.appended = close
        rig.stream_service.sent = lambda _: None
        with pytest.raises(Stale, match="is closed"):
            await asyncio.to_thread(moved, rig)
        assert rig.stream_service.refused >= 1
        assert len(rig.stream_service.staged("0/000007.sst")) == 1 << 16
        await rig.wait_for(lambda: rig.stream_service.places == rig.stream_service.sources == 0)


@pytest.mark.parametrize("error", [DiskFull("no room", advice="make some"), Corruption("other bytes")])
async def test_errors_of_a_put_are_raised_as_they_are(tmp_path: Path, error: EblaError) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)

        def fail(place: IncomingPut) -> None:
            raise error

        rig.stream_service.appended = fail
        with pytest.raises(type(error)) as caught:
            await asyncio.to_thread(moved, rig)
        assert (caught.value.message, caught.value.advice) == (error.message, error.advice)
        assert caught.value.outcome is error.outcome


async def test_a_defect_shows_no_inside(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)

        def fail(place: IncomingPut) -> None:
            raise ZeroDivisionError("a secret path")

        rig.stream_service.appended = fail
        with pytest.raises(InternalError, match="ZeroDivisionError") as caught:
            await asyncio.to_thread(moved, rig)
        assert "secret" not in str(caught.value)
        assert [name for name, _ in rig.reports] == ["flight.broke"]


@pytest.mark.parametrize("direct_read_bytes", [0, 1 << 20])
async def test_a_put_that_breaks_goes_on_where_it_was(tmp_path: Path, direct_read_bytes: int) -> None:
    """The connection ends under the third piece; the next try sends the rest and no more."""
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)
        broken: list[int] = []

        def break_once(place: IncomingPut) -> None:
            if place.received_bytes >= 1 << 17 and not broken:
                broken.append(place.received_bytes)
                raise ConnectionLost("as if the cable were cut")

        rig.stream_service.appended = break_once
        staged = await asyncio.to_thread(moved, rig, direct_read_bytes=direct_read_bytes)
        assert broken == [1 << 17]
        assert staged.checksum == zlib.crc32(CONTENT)
        assert rig.stream_service.staged("0/000007.sst") == CONTENT


@pytest.mark.parametrize("end", ["source", "target"])
async def test_a_connection_that_is_cut_is_made_again(tmp_path: Path, end: str) -> None:
    """A real cut of TCP, on the way from the source or to the target, in the middle of a file of many pieces."""
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        content = os.urandom(16 << 20)
        add_file(rig, FILE.file, content)
        source, target = rig.source(), rig.target()
        async with cut_proxy(rig.address, 6 << 20) as (proxy, address):
            if end == "source":
                source = msgspec.structs.replace(source, flight=address)
            else:
                target = msgspec.structs.replace(target, flight=address)
            staged = await rig.ask(lambda client: client.move_file(source, FILE, target, ATTEMPT, "0/x"))
            assert (proxy.cuts, proxy.connections) == (1, 2)
        assert staged.checksum == zlib.crc32(content)
        assert rig.stream_service.staged("0/x") == content
        # What had come before the cut was not sent again.
        assert rig.stream_service.sent_bytes < len(content) + (12 << 20)


async def test_tries_without_progress_are_bounded(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        add_file(rig, FILE.file, CONTENT)
        opened: list[int] = []

        def refuse(_: int) -> None:
            opened.append(1)
            raise Overloaded("too many streams")

        rig.stream_service.sent = refuse
        with pytest.raises(Overloaded, match="too many"):
            await asyncio.to_thread(moved, rig)
        assert len(opened) == QUICK.attempts_max


async def test_an_unreachable_node_is_told_soon(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        add_file(rig, FILE.file, CONTENT)
        await rig.server.close()
        with pytest.raises(Unreachable):
            await asyncio.to_thread(moved, rig)


async def test_streams_are_bounded(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL, streams_max=1) as rig:
        add_file(rig, FILE.file, os.urandom(20 << 20))

        def both(client: FlightClient) -> None:
            first = iter(client.get_file(rig.source(), FILE))
            next(first)
            with pytest.raises(Overloaded, match="1 streams"):
                list(client.get_file(rig.source(), FILE))
            assert sum(map(len, first))
            assert sum(map(len, client.get_file(rig.source(), FILE)))

        await rig.ask(both)


async def test_a_slow_reader_holds_little_and_nobody_else(tmp_path: Path) -> None:
    """What it does not take is not read from disk; others get theirs meanwhile."""
    async with flight_rig(tmp_path) as rig:
        size = 64 << 20
        add_file(rig, FILE.file, os.urandom(size))
        add_file(rig, FILE.file, CONTENT)

        def slow(client: FlightClient) -> int:
            stream = iter(client.get_file(rig.source(), FILE))
            next(stream)
            with FlightClient(rig.authority_pem, QUICK) as other:
                assert b"".join(other.get_file(rig.source(), CheckpointFileRef(1, 0, FILE.file))) == CONTENT
            return rig.stream_service.sent_bytes

        assert await rig.ask(slow) < size // 2
        await rig.wait_for(lambda: rig.stream_service.sources == 0)


async def test_a_client_that_vanishes_leaves_nothing_open(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, os.urandom(64 << 20))
        source, target = rig.source(), rig.target()
        location = flight.Location.for_grpc_tls(rig.address.host, rig.address.port)

        def vanish() -> None:
            client = flight.FlightClient(
                location, tls_root_certs=rig.authority_pem, override_hostname=certificate_host_name(host(1))
            )
            query = FilesQuery(part=FILE.part, layer=FILE.layer, file=FILE.file)
            reader = client.do_get(flight.Ticket(encode(FlightGet(source.ticket, query))))
            reader.read_chunk()
            put = FlightPut(ticket=target.ticket, attempt=AttemptId(uuid.UUID(int=3)), name="0/x", size_bytes=1 << 20)
            writer, answers = client.do_put(flight.FlightDescriptor.for_command(encode(put)), BYTES_SCHEMA)
            answers.read()
            writer.write_batch(bytes_batch(b"x" * 1000))
            del reader, writer, answers
            client.close()

        await asyncio.to_thread(vanish)
        await rig.wait_for(lambda: rig.server.streams == rig.stream_service.sources == rig.stream_service.places == 0)
        assert rig.stream_service.staged("0/x", AttemptId(uuid.UUID(int=3))) == b"x" * 1000


async def test_a_changed_source_is_found_out(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)
        (tmp_path / "checkpoint" / "files0" / FILE.file).write_bytes(CONTENT[:-9])
        with pytest.raises(Corruption, match="before its size"):
            await asyncio.to_thread(moved, rig)


async def test_bytes_that_change_on_the_way_are_found_out(tmp_path: Path) -> None:
    async with flight_rig(tmp_path, piece_bytes=SMALL) as rig:
        add_file(rig, FILE.file, CONTENT)

        def spoil(place: IncomingPut) -> None:
            place.checksum ^= 1

        rig.stream_service.appended = spoil
        with pytest.raises(Corruption, match="checksum"):
            await asyncio.to_thread(moved, rig)


async def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    async with flight_rig(tmp_path) as rig:
        (tmp_path / "more").mkdir()
        with pytest.raises(InvalidRequest, match="cannot listen"):
            rig.server.listen(rig.address, identity_of(Cluster(tmp_path / "more").folder(1)))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
async def test_the_threads_that_serve_have_the_niceness_of_the_one_that_opened(tmp_path: Path) -> None:
    def serving() -> dict[int, int]:
        found = {}
        for task in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread of an earlier test has ended
                if (task / "comm").read_text().startswith("grpcpp"):
                    found[int(task.name)] = os.getpriority(os.PRIO_PROCESS, int(task.name))
        return found

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    before = serving()
    back = partial(lower_thread_priority, 2)
    server = FlightServer(RigPlane(folder=tmp_path), BulkWorkers(), lambda *_: None, back)
    server.listen(free_address(), identity_of(Cluster(tmp_path).folder(1)))
    added: dict[int, int] = {}
    gives_up_at = time.monotonic() + 10
    while not added and time.monotonic() < gives_up_at:  # a thread has its name only once it has begun to run
        added = {thread: nice for thread, nice in serving().items() if thread not in before}
    assert added
    assert set(added.values()) == {min(19, own + 2)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    await server.close()


def test_limits_of_calls_grow_with_what_they_move() -> None:
    client = FlightClient(b"", FlightClientLimits(call_s=10, bytes_per_s_min=1000))
    assert client._time_for(5_000) == 15
    assert pa.schema([("bytes", pa.binary())]).names == BYTES_SCHEMA.names

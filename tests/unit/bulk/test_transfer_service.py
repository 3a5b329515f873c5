"""Transfers at a bulk process: checkpoints, staging, the seal, and what is left of sessions."""

import asyncio
import uuid
import zlib
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.async_tests import runs_in
from tests.unit.bulk.bulk_process_rig import BULK, OURS
from tests.unit.bulk.transfer_rig import (
    ATTEMPT,
    CALL_MS,
    FLIGHT,
    LAYER,
    SESSION,
    TRANSFER,
    VERSION,
    TransferRig,
    job,
    seal_of,
    take_of,
    with_transfers,
)
from tests.unit.storage.small_table import TABLE

from ebla.bulk.stream_service import SourceStream, StreamService
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.errors import DiskFull, InvalidRequest, NotFound, Overloaded, Refused, Stale, Unavailable
from ebla.model.identity import AttemptId, CheckpointId, RequestId, SessionId, ShardNumber, TableId
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import CheckpointLayer, StagedFile, StagingKind
from ebla.storage.codec.staging_format import read_sealed
from ebla.topology.keys import session_key, table_key
from ebla.topology.snapshot import Session
from ebla.topology.states import SessionKind
from ebla.wire.client_connection import ConnectionTarget as CallTarget
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.frames import Lane
from ebla.wire.metrics_messages import MetricsRequest
from ebla.wire.peers import connect
from ebla.wire.transfer_messages import (
    CheckpointRequest,
    FlightPut,
    OpenStagingRequest,
    ReleaseRequest,
    SealRequest,
    TakeCheckpointRequest,
)
from ebla.wire.verbs import METRICS, OPEN_STAGING, RELEASE, SEAL, TAKE_CHECKPOINT

pytestmark = runs_in(with_transfers)

MOVED = {name: data for name, data in LAYER.items() if name not in ("LOCK", "LOG")}
OTHER = SessionId(uuid.UUID(int=55))
SECOND_ATTEMPT = AttemptId(uuid.UUID(int=8))


async def put_layer(rig: TransferRig, caller: RpcClientConnection) -> list[StagedFile]:
    target = await rig.open_staging(caller)
    return [await rig.put(target, f"0/{name}", data) for name, data in MOVED.items()]


def check_files(folder: Path, layer: CheckpointLayer) -> None:
    for file in layer.files:
        assert (folder / file.name).stat().st_ino == file.inode
        assert (folder / file.name).read_bytes() == LAYER[file.name]


async def test_a_checkpoint_is_listed_read_and_given_back(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        source = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        assert rig.shard.asked == [
            CheckpointRequest(
                session=SESSION, table=TABLE, range=WHOLE_RING, version=VERSION, folder=f"{source.folder}/shard-0"
            )
        ]
        assert (source.host, source.table, source.flight) == (OURS.host, TABLE, FLIGHT)
        (part,) = source.parts
        (layer,) = part.layers
        assert {file.name: file.size_bytes for file in layer.files} == {name: len(data) for name, data in MOVED.items()}
        check_files(Path(source.folder, layer.folder), layer)
        assert source.machine in rig.below(f"checkpoints/{source.checkpoint}")
        assert source.machine.startswith("machine.")
        opened = rig.stream_service.open_source(source.ticket)
        assert (opened.folder, opened.parts, opened.schema.name) == (source.folder, source.parts, "small")
        await rig.stream_service.admit_sending(opened, 123)
        status = await rig.status(caller)
        assert (status.checkpoints, status.streams, status.sent_bytes) == (1, 1, 123)
        rig.stream_service.close_source(opened)
        rig.stream_service.close_source(opened)
        await caller.call(RELEASE, ReleaseRequest(SESSION, (source.checkpoint,)), CALL_MS)
        assert rig.below("checkpoints") == []
        with pytest.raises(Refused, match="no longer exists"):
            rig.stream_service.open_source(source.ticket)
        status = await rig.status(caller)
        assert (status.checkpoints, status.streams) == (0, 0)


async def test_what_is_staged_is_sealed_and_told_of(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job(), job(OTHER)) as caller:
        files = await put_layer(rig, caller)
        (staging,) = (await rig.status(caller)).stagings
        total = sum(map(len, MOVED.values()))
        assert (staging.transfer, staging.phase, staging.received_bytes) == (TRANSFER, "open", total)
        answer = await caller.call(SEAL, seal_of(*files), CALL_MS)
        assert (answer.size_bytes, answer.copied_files) == (total, 0)
        assert await caller.call(SEAL, seal_of(*files), CALL_MS) == answer
        with pytest.raises(Refused, match=str(ATTEMPT)):
            await caller.call(SEAL, seal_of(*files, attempt=AttemptId(uuid.UUID(int=8))), CALL_MS)
        sealed = await read_sealed(rig.disk, str(tmp_path / f"staging/{SESSION}/{TRANSFER}"))
        assert sealed is not None
        assert sealed.attempt == ATTEMPT
        (staging,) = (await rig.status(caller)).stagings
        assert staging.phase == "sealed"
        await caller.call(RELEASE, ReleaseRequest(OTHER, (), (TRANSFER,)), CALL_MS)
        assert rig.below("staging") != [], "it is not theirs"
        await caller.call(RELEASE, ReleaseRequest(SESSION, (), (TRANSFER,)), CALL_MS)
        assert (await rig.status(caller)).stagings == ()
        await rig.until(lambda: rig.below("staging") == [])


REQUEST = Session(id=SESSION, kind=SessionKind.REQUEST, request=RequestId(uuid.UUID(int=3)))
"""Of a topology operation: it has no table and no deadline."""


async def test_a_repeatable_transfer_is_found_in_every_phase(rig: TransferRig, /, tmp_path: Path) -> None:
    request = OpenStagingRequest(
        session=SESSION,
        transfer=TRANSFER,
        table=TABLE,
        shard=ShardNumber(0),
        range=WHOLE_RING,
        version=VERSION,
        kind=StagingKind.ROWS,
        is_repeatable=True,
    )

    async def open_again(caller: RpcClientConnection) -> tuple[bool, bool]:
        answer = await caller.call(OPEN_STAGING, request, CALL_MS)
        return answer.is_sealed, answer.is_done

    async with rig.life(REQUEST) as caller:
        assert await open_again(caller) == (False, False)
        await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)
        await caller.call(SEAL, SealRequest(session=SESSION, transfer=TRANSFER, attempt=ATTEMPT, files=()), CALL_MS)
        assert await open_again(caller) == (True, False)
    async with rig.life(REQUEST) as caller:
        assert await open_again(caller) == (True, False)
        await caller.call(RELEASE, ReleaseRequest(SESSION, (), (TRANSFER,)), CALL_MS)
        assert await open_again(caller) == (False, True)
        with pytest.raises(Refused):
            await rig.open_staging(caller, StagingKind.ROWS)
    async with rig.life(REQUEST) as caller:
        # A new process does not remember it, and the shard knows what it has adopted as a layer.
        rig.shard.adopted = [TRANSFER]
        assert await open_again(caller) == (False, True)
        rig.shard.adopted = []
        assert await open_again(caller) == (False, False)
        rig.control.close_session()
        await rig.until(lambda: rig.below("staging") == rig.below("checkpoints") == [])


async def test_a_stream_into_what_is_given_back_ends(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        target = await rig.open_staging(caller)
        place = await rig.stream_service.open_put(
            FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/a.sst", size_bytes=100)
        )
        await rig.stream_service.append(place, b"some")
        await caller.call(RELEASE, ReleaseRequest(SESSION, (), (TRANSFER,)), CALL_MS)
        with pytest.raises(Stale, match="has ended"):
            await rig.stream_service.append(place, b"more")
        rig.stream_service.close_put(place)
        assert rig.stream_service.count == 0
        assert (await rig.status(caller)).refused_closed_session == 0


async def test_a_closed_session_has_no_effect_and_leaves_nothing(rig: TransferRig, /, tmp_path: Path) -> None:
    """INV-XFER-1, INV-XFER-5."""
    async with rig.life(job()) as caller:
        source = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        opened = rig.stream_service.open_source(source.ticket)
        target = await rig.open_staging(caller)
        file = await rig.put(target, "0/a.sst", b"rows")
        place = await rig.stream_service.open_put(
            FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/b.sst", size_bytes=100)
        )
        await rig.stream_service.append(place, b"some")
        rig.control.close_session()
        await rig.until(lambda: rig.below("staging") == [] and rig.below("checkpoints") == [])
        assert rig.stream_service.count == 0, "tasks that are frozen keep no place"
        with pytest.raises(Stale, match="closed"):
            await rig.stream_service.append(place, b"more")
        with pytest.raises(Stale, match="closed"):
            await rig.stream_service.finish_put(place)
        with pytest.raises(Stale, match="closed"):
            await rig.stream_service.open_put(
                FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/b.sst", size_bytes=100)
            )
        with pytest.raises(Stale, match="closed"):
            await rig.stream_service.admit_sending(opened, 5)
        with pytest.raises(Stale, match="closed"):
            rig.stream_service.open_source(source.ticket)
        with pytest.raises(Stale, match="closed"):
            await caller.call(SEAL, seal_of(file), CALL_MS)
        with pytest.raises(Stale, match="closed"):
            await rig.open_staging(caller)
        with pytest.raises(Stale, match="closed"):
            await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)
        await caller.call(RELEASE, ReleaseRequest(SESSION, (source.checkpoint,), (TRANSFER,)), CALL_MS)
        assert rig.below("staging") == []
        status = await rig.status(caller)
        assert (status.refused_closed_session, status.stagings, status.checkpoints) == (8, (), 0)
        rig.stream_service.close_put(place)
        rig.stream_service.close_source(opened)
        assert rig.stream_service.count == 0


async def test_what_a_late_task_makes_again_goes_too(rig: TransferRig, /, tmp_path: Path) -> None:
    """INV-XFER-5, without Flight: a task that was frozen continues in a folder that was swept."""
    async with rig.life(job(), job(OTHER)) as caller:
        target = await rig.open_staging(caller)
        rig.control.close_session()
        await rig.until(lambda: rig.below("staging") == [])
        rig.disk.make_folder(f"{target.folder}/{ATTEMPT}")
        rig.disk.create(f"{target.folder}/{ATTEMPT}/late").close()
        await rig.until(lambda: rig.below("staging") == [])


async def test_a_process_that_has_not_heard_of_the_end_asks_first(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        source = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        target = await rig.open_staging(caller)
        files = await put_layer(rig, caller)
        put = FlightPut(ticket=target.ticket, attempt=SECOND_ATTEMPT, name="0/more.sst", size_bytes=10)
        rig.control.close_session(notify=False)
        async with asyncio.TaskGroup() as tasks:
            late = [
                tasks.create_task(_refusal(work))
                for work in (
                    caller.call(SEAL, seal_of(*files), CALL_MS),
                    rig.stream_service.open_put(put),
                    rig.open_staging(caller),
                    caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS),
                    caller.call(RELEASE, ReleaseRequest(SESSION, (source.checkpoint,)), CALL_MS),
                )
            ]
            asked = rig.control.barriers
            await rig.until(lambda: rig.control.barriers > asked + 1)
            assert not [one for one in late if one.done()]
            assert rig.below(f"checkpoints/{source.checkpoint}"), "not released by one that may not"
            rig.control.tell(rig.control.index, {session_key(SESSION): None})
        assert ["closed" in one.result() for one in late] == [True, True, True, True, False]


async def test_an_attempt_asks_for_a_barrier_with_its_first_file(rig: TransferRig, /, tmp_path: Path) -> None:
    """INV-XFER-1: the further ones find the end of the session as every batch does."""
    async with rig.life(job()) as caller:
        target = await rig.open_staging(caller)
        before = rig.control.barriers
        for number, attempt in enumerate((ATTEMPT, SECOND_ATTEMPT), 1):
            for name in ("0/a.sst", "0/b.sst", "0/c.sst"):
                await rig.put(target, name, b"rows", attempt)
            assert rig.control.barriers == before + number
        rig.control.close_session()
        await rig.until(lambda: rig.below("staging") == [])
        with pytest.raises(Stale, match="closed"):
            await rig.stream_service.open_put(
                FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/d.sst", size_bytes=1)
            )
        assert rig.control.barriers > before + 2, "a session that is over leaves no attempt known"


async def _refusal(work: Awaitable[object]) -> str:
    try:
        await work
    except Stale as error:
        return error.message
    return ""


async def test_without_a_quorum_nothing_begins_and_nothing_is_removed(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job(), job(OTHER)) as caller:
        files = await put_layer(rig, caller)
        target = await rig.open_staging(caller)
        before = rig.below("staging")
        rig.control.has_quorum = False
        with pytest.raises(Unavailable, match="quorum"):
            await rig.stream_service.open_put(
                FlightPut(ticket=target.ticket, attempt=SECOND_ATTEMPT, name="0/b.sst", size_bytes=100)
            )
        with pytest.raises(Unavailable, match="quorum"):
            await caller.call(SEAL, seal_of(*files), CALL_MS)
        rig.control.close_session()
        await rig.until(lambda: "staging.not_swept" in rig.reports)
        assert rig.below("staging") == before
        rig.control.has_quorum = True
        await rig.until(lambda: rig.below("staging") == [])


async def test_a_put_and_a_ticket_outlive_the_process(rig: TransferRig, /, tmp_path: Path) -> None:
    data = b"0123456789" * 100
    async with rig.life(job()) as caller:
        source = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        target = await rig.open_staging(caller)
        place = await rig.stream_service.open_put(
            FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/a.sst", size_bytes=len(data))
        )
        await rig.stream_service.append(place, data[:300])
    async with rig.life(job()) as caller:
        opened: SourceStream = rig.stream_service.open_source(source.ticket)
        assert opened.parts == source.parts
        place = await rig.stream_service.open_put(
            FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/a.sst", size_bytes=len(data))
        )
        assert place.received_bytes == 300
        await rig.stream_service.append(place, data[300:])
        assert (await rig.stream_service.finish_put(place)).checksum == zlib.crc32(data)
        rig.stream_service.close_put(place)
        file = StagedFile(name="0/a.sst", size_bytes=len(data), checksum=zlib.crc32(data))
        await caller.call(SEAL, seal_of(file), CALL_MS)
    async with rig.life():
        await rig.until(lambda: rig.below("staging") == [] and rig.below("checkpoints") == [])


async def test_tickets_open_what_they_name(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job(deadline_ms=1 << 50)) as caller:
        source = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        target = await rig.open_staging(caller)
        with pytest.raises(Refused, match="for a put, not for a get"):
            rig.stream_service.open_source(target.ticket)
        with pytest.raises(Refused, match="for a get, not for a put"):
            await rig.stream_service.open_put(
                FlightPut(ticket=source.ticket, attempt=ATTEMPT, name="0/a", size_bytes=1)
            )
        with pytest.raises(Refused, match="not a ticket"):
            rig.stream_service.open_source(b"let me in")
        with pytest.raises(InvalidRequest, match="not a name"):
            await rig.stream_service.open_put(
                FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="../key", size_bytes=1)
            )
        assert (await rig.status(caller)).refused_tickets == 3
        assert rig.stream_service.count == 0
        key = tmp_path / "staging" / "key"
        assert key.stat().st_mode & 0o077 == 0


@runs_in(with_transfers, TransferLimits(puts_max=1, gets_max=1, sweep_ms=50))
async def test_streams_are_bounded(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        source = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        target = await rig.open_staging(caller)
        opened = rig.stream_service.open_source(source.ticket)
        with pytest.raises(Overloaded, match="out of this node"):
            rig.stream_service.open_source(source.ticket)
        place = await rig.stream_service.open_put(
            FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/a", size_bytes=1)
        )
        with pytest.raises(Overloaded, match="into this node"):
            await rig.stream_service.open_put(
                FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/b", size_bytes=1)
            )
        rig.stream_service.close_source(opened)
        rig.stream_service.close_put(place)
        rig.stream_service.close_put(place)
        rig.stream_service.close_source(rig.stream_service.open_source(source.ticket))
        rig.stream_service.close_put(
            await rig.stream_service.open_put(
                FlightPut(ticket=target.ticket, attempt=ATTEMPT, name="0/b", size_bytes=1)
            )
        )


@runs_in(with_transfers, TransferLimits(free_bytes_min=1 << 60, sweep_ms=50))
async def test_staging_leaves_room_to_the_shards(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        with pytest.raises(DiskFull, match="does not fit"):
            await rig.open_staging(caller)
        assert rig.below("staging") == []


async def test_what_a_shard_refuses_leaves_nothing(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        rig.shard.failure = Stale("no replica of it here")
        with pytest.raises(Stale, match="no replica"):
            await rig.open_staging(caller)
        with pytest.raises(Stale, match="no replica"):
            await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)
        assert (rig.below("staging"), rig.below("checkpoints")) == ([], [])
        assert (await rig.status(caller)).refused_closed_session == 0
        rig.shard.failure = None
        await rig.open_staging(caller)
        rig.shard.incarnation += 1
        with pytest.raises(Stale, match="another incarnation"):
            await rig.open_staging(caller)


async def test_what_a_shard_refuses_is_told_though_its_folder_cannot_go_yet(
    rig: TransferRig, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.life(job()) as caller:
        rig.shard.failure = Stale("no replica of it here")
        remove, failures = rig.disk.remove_folder, [OSError("not empty")]

        def removed(path: str) -> None:
            if failures and "checkpoints" in path:
                raise failures.pop()
            remove(path)

        monkeypatch.setattr(rig.disk, "remove_folder", removed)
        with pytest.raises(Stale, match="no replica"):
            await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)
        await rig.until(lambda: not list((tmp_path / "checkpoints").iterdir()))
        assert failures == []


async def test_a_checkpoint_that_comes_too_late_goes(rig: TransferRig, /, tmp_path: Path) -> None:
    """The caller has given up, and the shard makes it all the same."""
    async with rig.life(job()) as caller:
        rig.shard.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS))
            await rig.until(lambda: len(rig.shard.asked) == 1)
            asking.cancel()
        await rig.until(lambda: not list((tmp_path / "checkpoints").iterdir()))
        late = tmp_path / "checkpoints" / str(CheckpointId(uuid.uuid4())) / "shard-0"
        late.mkdir(parents=True)
        await rig.until(lambda: not list((tmp_path / "checkpoints").iterdir()))
        assert (await rig.status(caller)).checkpoints == 0


async def test_only_what_the_session_is_for_is_touched(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()) as caller:
        elsewhere = TakeCheckpointRequest(
            session=SESSION, table=TableId(uuid.UUID(int=1)), range=WHOLE_RING, version=VERSION
        )
        with pytest.raises(Refused, match="is for table"):
            await caller.call(TAKE_CHECKPOINT, elsewhere, CALL_MS)
        no_shard = OpenStagingRequest(
            session=SESSION,
            transfer=TRANSFER,
            table=TABLE,
            shard=ShardNumber(3),
            range=WHOLE_RING,
            version=VERSION,
            kind=StagingKind.FILES,
        )
        with pytest.raises(InvalidRequest, match="none with number 3"):
            await caller.call(OPEN_STAGING, no_shard, CALL_MS)
        files = await put_layer(rig, caller)
        rig.control.change({table_key(TABLE): None})
        await rig.until(lambda: rig.bulk is not None and TABLE not in rig.bulk.view.current.schemas)
        with pytest.raises(NotFound, match="dropped"):
            await caller.call(SEAL, seal_of(*files), CALL_MS)


async def test_the_doors_for_the_node_and_for_peers_serve_the_same(rig: TransferRig, /, tmp_path: Path) -> None:
    async with rig.life(job()):
        local, _ = await connect(rig.context, BULK, CallTarget(Lane.DATA, OURS.host))
        asking, _ = await connect(rig.context, BULK, CallTarget(Lane.CONTROL, OURS.host))
        target = await rig.open_staging(local)
        await rig.put(target, "0/a", b"12345")
        answer = await asking.call(METRICS, MetricsRequest(), CALL_MS)
        values = {metric.name: metric.series[0].value for metric in answer.metrics}
        assert values["bulk_received_bytes_total"] == 5
        local.close("done")
        asking.close("done")


async def test_a_stream_server_runs_as_long_as_the_process(rig: TransferRig, /, tmp_path: Path) -> None:
    seen: list[str] = []

    async def serve(stream_service: StreamService) -> None:
        seen.append(type(stream_service).__name__)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    rig.stream_servers = (serve,)
    async with rig.life():
        await rig.until(lambda: seen == ["TransferStreams"])
    assert seen == ["TransferStreams", "ended"]

"""Table reads at a bulk process: one checkpoint for each, kept while it is used, taken again on request."""

import asyncio
import uuid
from pathlib import Path

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.bulk.bulk_process_rig import OURS
from tests.unit.bulk.read_rig import (
    AWAY,
    HALVES,
    IDLE_MS,
    LAYER_BYTES,
    LIFE_MS,
    LIMITS,
    NEXT,
    OTHER,
    OWN,
    READ,
    ReadRig,
    is_there,
    opened,
)
from tests.unit.bulk.transfer_rig import (
    CALL_MS,
    FLIGHT,
    ROWS,
    VERSION,
    TransferRig,
    job,
    take_of,
    with_transfers,
)
from tests.unit.storage.small_table import SMALL, TABLE

from ebla.bulk.stream_service import SourceStream
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.errors import Corruption, InvalidRequest, NotFound, Overloaded, Refused, Stale, Unavailable
from ebla.model.identity import TableId
from ebla.model.schema import encode_schema
from ebla.model.token import WHOLE_RING
from ebla.topology.keys import table_key
from ebla.topology.snapshot import Table
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.table_calls import CloseTableReadRequest, OpenTableReadRequest, ReadId, StackSizeEstimate
from ebla.wire.transfer_messages import CheckpointRequest
from ebla.wire.verbs import CLOSE_TABLE_READ, OPEN_TABLE_READ, TAKE_CHECKPOINT

pytestmark = runs_in(with_transfers, LIMITS)


async def test_a_read_is_told_where_and_how_much_and_reads_one_point(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        answer = await opened(caller)
        (asked,) = rig.shard.asked
        assert isinstance(asked, CheckpointRequest)
        assert (asked.session, asked.table, asked.range, asked.version) == (None, TABLE, WHOLE_RING, VERSION)
        assert (answer.source.host, answer.source.flight) == (OURS.host, FLIGHT)
        assert answer.stacks == (StackSizeEstimate(WHOLE_RING, LAYER_BYTES, ROWS),)
        source = await reads.enter(answer.source.ticket)
        assert (source.session, source.schema.id, source.schema.name) == (None, TABLE, "small")
        assert source.machine == answer.source.machine
        assert (Path(source.folder) / source.machine).exists()
        assert (Path(source.folder) / source.parts[0].layers[0].folder / "000009.sst").exists()
        await rig.stream_service.admit_sending(source, 123)
        status = await rig.status(caller)
        assert (status.reads, status.checkpoints, status.streams, status.sent_bytes) == (1, 1, 1, 123)
        again = await opened(caller)
        assert again.stacks == answer.stacks
        same = await reads.enter(again.source.ticket, 0)
        assert (same.checkpoint, reads.taken) == (source.checkpoint, 1)
        other = await reads.enter((await opened(caller, OTHER)).source.ticket)
        assert (other.checkpoint != source.checkpoint, reads.taken) == (True, 2)
        for one in (source, same, other, other):
            rig.stream_service.close_source(one)
        assert rig.stream_service.count == 0


async def test_each_run_of_a_job_reads_a_point_of_its_own(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        barriers = rig.control.barriers
        first, second = await reads.enter(ticket, run="query 1"), await reads.enter(ticket, run="query 2")
        same = await reads.enter(ticket, 0, run="query 1")
        assert (first.checkpoint != second.checkpoint, same.checkpoint) == (True, first.checkpoint)
        assert reads.taken == 3, "one that was opened, and one for each run, taken when it came"
        assert rig.control.barriers == barriers + 2
        for one in (first, second, same):
            rig.stream_service.close_source(one)
        await reads.idle()
        assert (await rig.status(caller)).reads == 0


async def test_what_nobody_uses_goes_and_is_taken_again_by_its_ticket(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        first = await reads.enter(ticket)
        reads.clock.ahead_ms += 2 * IDLE_MS
        await reads.swept()
        assert (await rig.status(caller)).reads == 1, "a stream under way keeps it"
        assert is_there(first)
        rig.stream_service.close_source(first)
        await reads.swept()
        assert (await rig.status(caller)).reads == 1, "its time begins with the end of the last stream"
        await reads.idle()
        assert (await rig.status(caller)).reads == 0
        barriers = rig.control.barriers
        second = await reads.enter(ticket)
        assert (second.checkpoint != first.checkpoint, reads.taken) == (True, 2)
        assert rig.control.barriers == barriers + 1
        assert rig.shard.asked[-1].version == VERSION
        rig.stream_service.close_source(second)
        rig.control.has_quorum = False
        kept = await reads.enter(ticket)
        rig.stream_service.close_source(kept)
        await reads.idle()
        with pytest.raises(Unavailable, match="no quorum"):
            await reads.enter(ticket)
        assert (await rig.status(caller)).reads == 0


async def test_it_is_taken_by_a_topology_that_is_as_new_as_the_question(rig: TransferRig, /, tmp_path: Path) -> None:
    """Others have seen a tablet leave, and write elsewhere; this process has not heard of it yet."""
    reads = ReadRig(rig)
    reads.on_tablets(OWN, OWN)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        await reads.idle()
        moved = reads.tablets(OWN, AWAY)
        rig.control.change(moved, notify=False)
        with pytest.raises(Unavailable):
            await reads.enter(ticket, 1)
        assert reads.taken == 1
        rig.control.change(moved)
        with pytest.raises(Stale, match="no complete copy"):
            await reads.enter(ticket, 1)
        rig.stream_service.close_source(await reads.enter(ticket, 0))


async def test_one_takes_it_for_all_who_ask_at_once(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        await reads.idle()
        rig.shard.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(reads.enter(ticket)) for _ in range(5)]
            asking.append(tasks.create_task(reads.enter(ticket, 1)))
            await rig.until(lambda: reads.taken == 2)
            reads.clock.ahead_ms += 2 * IDLE_MS
            await reads.swept()
            rig.shard.gate.set()
        sources = [one.result() for one in asking]
        assert (len({one.checkpoint for one in sources}), reads.taken) == (1, 2)
        assert (await rig.status(caller)).streams == 6
        for one in sources:
            rig.stream_service.close_source(one)


async def test_the_next_takes_it_where_the_first_gave_up_or_failed(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        await reads.idle()
        rig.shard.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(reads.enter(ticket))
            await rig.until(lambda: reads.taken == 2)
            second = tasks.create_task(reads.enter(ticket))
            first.cancel()
            await rig.until(lambda: reads.taken == 3)
            rig.shard.gate.set()
        assert first.cancelled()
        rig.stream_service.close_source(second.result())
        await reads.idle()
        rig.shard.failure = Corruption("a layer is damaged")
        with pytest.raises(Corruption):
            await reads.enter(ticket)
        assert (rig.stream_service.count, (await rig.status(caller)).reads, rig.below("checkpoints")) == (
            0,
            0,
            [],
        )


async def test_a_range_that_is_not_owned_is_refused_and_never_empty(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    reads.on_tablets(OWN, AWAY)
    async with rig.life() as caller:
        answer = await opened(caller)
        assert [one.range for one in answer.stacks] == [HALVES[0]]
        rig.stream_service.close_source(await reads.enter(answer.source.ticket, 0))
        for number in (1, None):
            with pytest.raises(Stale, match="no complete copy"):
                await reads.enter(answer.source.ticket, number)
        assert (await reads.metric_values("bulk_refused_total"))[("not_owned",)] == 2
        assert await reads.metric_values("bulk_reads") == {(): 1}
        assert await reads.metric_values("bulk_read_checkpoints_total") == {(): 1}
        assert rig.stream_service.count == 0


async def test_a_tablet_that_moves_away_is_read_to_the_end_by_who_began(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    reads.on_tablets(OWN, OWN)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        source = await reads.enter(ticket, 1)
        reads.move(OWN, AWAY)
        await reads.settled(NEXT)
        await rig.stream_service.admit_sending(source, 1)
        rig.stream_service.close_source(source)
        later = await reads.enter(ticket, 1)
        assert later.checkpoint == source.checkpoint
        rig.stream_service.close_source(later)
        assert (len((await opened(caller)).stacks), reads.taken) == (2, 1), "by the plan of then it is still there"
        await reads.idle()
        with pytest.raises(Stale, match="no complete copy"):
            await reads.enter(ticket, 1)


async def test_a_tablet_that_came_is_there_for_who_opens_the_read_again(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    reads.on_tablets(OWN, AWAY)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        before = await reads.enter(ticket, 0)
        reads.move(OWN, OWN)
        await reads.settled(NEXT)
        with pytest.raises(Stale, match="no complete copy"):
            await reads.enter(ticket, 1)
        assert len((await opened(caller)).stacks) == 1, "who plans by the old version needs no more"
        answer = await opened(caller, version=NEXT)
        assert ([one.range for one in answer.stacks], reads.taken) == (list(HALVES), 2)
        with pytest.raises(Stale, match="no complete copy"):
            await reads.enter(ticket, 1)
        after = await reads.enter(answer.source.ticket, 1)
        assert after.checkpoint != before.checkpoint
        await reads.swept()
        assert is_there(before), "it is still being read"
        await rig.stream_service.admit_sending(before, 1)
        rig.stream_service.close_source(before)
        await rig.until(lambda: not is_there(before))
        await rig.stream_service.admit_sending(after, 1)
        rig.stream_service.close_source(after)


async def test_a_replica_that_left_and_came_back_is_another_one(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    reads.on_tablets(OWN, OWN)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        reads.move(AWAY, AWAY)
        reads.move(OWN, OWN)
        rig.shard.first_life += 1
        await reads.settled(NEXT + 1)
        rig.stream_service.close_source(await reads.enter(ticket))
        await reads.idle()
        rig.stream_service.close_source(await reads.enter(ticket, 0))
        with pytest.raises(Stale, match="that it had when the read was planned"):
            await reads.enter(ticket, 1)
        again = (await opened(caller, version=NEXT + 1)).source.ticket
        rig.stream_service.close_source(await reads.enter(again))
        rig.control.change({})
        taken = reads.taken
        await opened(caller, version=NEXT + 2)
        assert reads.taken == taken, "a version that is about something else"
        reads.move(AWAY, OWN)
        reads.move(OWN, OWN)
        await opened(caller, version=NEXT + 4)
        assert reads.taken == taken + 1, "the kept checkpoint belongs to replicas that left"


async def test_a_shard_may_be_ahead_or_lose_a_replica_meanwhile(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    reads.on_tablets(OWN, OWN)
    async with rig.life() as caller:
        rig.shard.version = NEXT
        moved = reads.tablets(OWN, AWAY)
        with pytest.raises(Stale, match=f"version {NEXT} .* has not arrived"):
            await opened(caller)
        assert (rig.below("checkpoints"), reads.taken) == ([], 3)
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(opened(caller))
            await rig.until(lambda: reads.taken == 4)
            rig.control.change(moved)
        assert [one.range for one in opening.result().stacks] == [HALVES[0]]
        rig.shard.stale = 2
        assert len((await opened(caller, OTHER)).stacks) == 1
        rig.shard.stale = 3
        with pytest.raises(Stale, match="left"):
            await opened(caller, ReadId(uuid.UUID(int=3)))


async def test_rows_are_read_by_the_schema_that_the_shards_had(rig: TransferRig, /, tmp_path: Path) -> None:
    """A column is added while the files are linked: rows with it may be in them."""
    reads = ReadRig(rig)
    async with rig.life() as caller:
        rig.shard.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(opened(caller))
            await rig.until(lambda: reads.taken == 1)
            changed = encode_schema(msgspec.structs.replace(SMALL, name="changed"))
            rig.control.change({table_key(TABLE): Table(id=TABLE, keyspace="ks", name="changed", definition=changed)})
            rig.shard.version = NEXT
            rig.shard.gate.set()
        source = await reads.enter(opening.result().source.ticket)
        assert source.schema.name == "changed"
        rig.stream_service.close_source(source)


async def test_a_dropped_table_is_not_read_and_keeps_nothing(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        request = OpenTableReadRequest(read=READ, table=TableId(uuid.UUID(int=1)), version=VERSION, life_ms=LIFE_MS)
        with pytest.raises(NotFound, match="it was dropped"):
            await caller.call(OPEN_TABLE_READ, request, CALL_MS)
        ticket = (await opened(caller)).source.ticket
        source = await reads.enter(ticket)
        rig.control.change({table_key(TABLE): None})
        await rig.until(lambda: rig.below("checkpoints") == [])
        assert (rig.stream_service.count, (await rig.status(caller)).reads) == (0, 0), (
            "one that is frozen keeps no place"
        )
        with pytest.raises(Refused, match="its table was dropped"):
            await rig.stream_service.admit_sending(source, 5)
        rig.stream_service.close_source(source)
        with pytest.raises(NotFound, match="it was dropped"):
            await reads.enter(ticket)
        with pytest.raises(NotFound, match="it was dropped"):
            await opened(caller)
        assert rig.below("checkpoints") == []


async def test_a_table_that_is_dropped_while_its_checkpoint_is_taken(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        rig.shard.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(_not_found(caller))
            await rig.until(lambda: reads.taken == 1)
            rig.control.change({table_key(TABLE): None})
            await reads.settled(NEXT)
            await reads.swept()
            rig.shard.gate.set()
            await opening
        assert (rig.below("checkpoints"), (await rig.status(caller)).reads) == ([], 0)


async def _not_found(caller: RpcClientConnection) -> None:
    with pytest.raises(NotFound, match="it was dropped"):
        await opened(caller)


async def test_a_ticket_ends_and_ends_what_hangs_by_it(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        ticket = (await opened(caller, life_ms=IDLE_MS)).source.ticket
        source = await reads.enter(ticket)
        reads.clock.ahead_ms += IDLE_MS
        await rig.until(lambda: rig.below("checkpoints") == [])
        with pytest.raises(Refused, match="expired"):
            await rig.stream_service.admit_sending(source, 1)
        with pytest.raises(Refused, match="expired"):
            await reads.enter(ticket)
        assert (rig.stream_service.count, (await rig.status(caller)).reads) == (0, 0)
        (source, _) = await _kept_by_a_longer_one(reads, caller)
        rig.stream_service.close_source(source)
        most = (await opened(caller, life_ms=1 << 60)).source.ticket
        reads.clock.ahead_ms += LIMITS.read_life_ms_max
        with pytest.raises(Refused, match="expired"):
            await reads.enter(most)
        with pytest.raises(InvalidRequest, match="cannot live"):
            await opened(caller, life_ms=0)


async def _kept_by_a_longer_one(reads: ReadRig, caller: RpcClientConnection) -> tuple[SourceStream, bytes]:
    short, long = [(await opened(caller, life_ms=life_ms)).source.ticket for life_ms in (IDLE_MS // 2, IDLE_MS)]
    source = await reads.enter(short)
    reads.clock.ahead_ms += IDLE_MS // 2
    await reads.swept()
    await reads.rig.stream_service.admit_sending(source, 1)
    return source, long


async def test_a_process_that_starts_anew_keeps_none_and_takes_what_it_is_asked_for(
    rig: TransferRig, /, tmp_path: Path
) -> None:
    reads = ReadRig(rig)
    async with rig.life(job()) as caller:
        transfer = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        ticket = (await opened(caller)).source.ticket
        first = await reads.enter(ticket)
    assert is_there(first)
    async with rig.life(job()) as caller:
        assert not is_there(first)
        status = await rig.status(caller)
        assert (status.reads, status.checkpoints) == (0, 1)
        second = await reads.enter(ticket)
        assert second.checkpoint != first.checkpoint
        await reads.swept()
        assert is_there(second)
        rig.stream_service.close_source(second)
        rig.stream_service.close_source(rig.stream_service.open_source(transfer.ticket))


async def test_room_comes_back_when_a_read_is_closed(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life() as caller:
        ticket = (await opened(caller)).source.ticket
        await caller.call(CLOSE_TABLE_READ, CloseTableReadRequest(READ), CALL_MS)
        assert rig.below("checkpoints") == []
        await caller.call(CLOSE_TABLE_READ, CloseTableReadRequest(READ), CALL_MS)
        source = await reads.enter(ticket)
        await caller.call(CLOSE_TABLE_READ, CloseTableReadRequest(READ), CALL_MS)
        await rig.stream_service.admit_sending(source, 1)
        beside = await reads.enter(ticket)
        assert beside.checkpoint == source.checkpoint
        rig.stream_service.close_source(source)
        await reads.swept()
        assert is_there(beside)
        rig.stream_service.close_source(beside)
        await rig.until(lambda: rig.below("checkpoints") == [])


def test_so_many_are_kept_and_so_many_read(tmp_path: Path) -> None:
    limits = TransferLimits(sweep_ms=10, reads_max=2, read_streams_max=2, gets_max=1)

    async def story(rig: TransferRig) -> None:
        reads = ReadRig(rig)
        async with rig.life() as caller:
            first, second, third = [ReadId(uuid.UUID(int=number)) for number in (1, 2, 3)]
            tickets = {}
            for read in (first, second):
                tickets[read] = (await opened(caller, read)).source.ticket
                reads.clock.ahead_ms += 1000
            used = await reads.enter(tickets[first])
            rig.stream_service.close_source(used)
            tickets[third] = (await opened(caller, third)).source.ticket
            assert (await rig.status(caller)).reads == 2
            await rig.until(lambda: len(list((rig.folder / "checkpoints").iterdir())) == 2)
            kept = await reads.enter(tickets[first])
            assert (kept.checkpoint, reads.taken) == (used.checkpoint, 3), "the one that was used last stays"
            busy = await reads.enter(tickets[third])
            with pytest.raises(Overloaded, match="2 reads of tables"):
                await opened(caller, second)
            with pytest.raises(Overloaded, match="2 streams"):
                await reads.enter(tickets[first])
            rig.stream_service.close_source(busy)
            rig.stream_service.close_source(await reads.enter(tickets[second]))
            rig.stream_service.close_source(kept)
            assert rig.stream_service.count == 0

    with_transfers(story, limits, tmp_path=tmp_path)


async def test_a_ticket_opens_what_it_is_for(rig: TransferRig, /, tmp_path: Path) -> None:
    reads = ReadRig(rig)
    async with rig.life(job()) as caller:
        transfer = (await caller.call(TAKE_CHECKPOINT, take_of(), CALL_MS)).source
        ticket = (await opened(caller)).source.ticket
        with pytest.raises(Refused, match="for a read, not for a get"):
            rig.stream_service.open_source(ticket)
        with pytest.raises(Refused, match="for a get, not for a read"):
            await reads.enter(transfer.ticket)
        with pytest.raises(Refused, match="not signed"):
            await reads.enter(ticket[:-1] + bytes([ticket[-1] ^ 1]))
        with pytest.raises(Refused, match="is of table"):
            await _of_another_table(rig, caller)
        assert (await rig.status(caller)).refused_tickets == 3


async def _of_another_table(rig: TransferRig, caller: RpcClientConnection) -> None:
    other = TableId(uuid.UUID(int=77))
    assert rig.bulk is not None
    schemas = rig.bulk.view.current.schemas
    assert isinstance(schemas, dict)
    schemas[other] = schemas[TABLE]
    request = OpenTableReadRequest(read=READ, table=other, version=VERSION, life_ms=LIFE_MS)
    await caller.call(OPEN_TABLE_READ, request, CALL_MS)

"""Copies on their way to one target: frames, bounds, and one end for each."""

import asyncio
from dataclasses import replace

import pytest
from tests.async_tests import settled
from tests.unit.request.write_rig import A, StubClients, mutation

from ebla.model.errors import EblaError
from ebla.model.identity import TopologyVersion
from ebla.request.outbox import Outbox, Outboxes, ReplicaWrite
from ebla.request.router_types import RouterLimits
from ebla.request.write_call import ReplicaWriteFailure
from ebla.wire.row_messages import RowWrite, WriteFailure, WriteRowsAnswer, WriteRowsRequest


class Ends:
    def __init__(self) -> None:
        self.acknowledgements: list[int] = []
        self.failures: dict[int, ReplicaWriteFailure] = {}

    def on_reply(self, position: int, failure: ReplicaWriteFailure | None) -> None:
        if failure is None:
            self.acknowledgements.append(position)
        else:
            assert position not in self.failures
            self.failures[position] = failure


def copy(ends: Ends, position: int, size: int = 100, expires_at: float = 1000.0) -> ReplicaWrite:
    asked = mutation()
    return ReplicaWrite(
        RowWrite(TopologyVersion(1), asked.table, asked.items), size, ends.on_reply, position, expires_at
    )


def is_full(box: Outbox) -> bool:
    return box.is_full


def sizes(clients: StubClients) -> list[int]:
    return [len(request.writes) for request in clients.sent[A]]


LIMITS = RouterLimits(frame_writes_max=3, frame_bytes_max=1000, frames_in_flight_max=2, target_writes_max=20)


async def test_frames_are_bounded_in_writes_and_bytes_and_a_large_write_goes_alone() -> None:
    clients, ends = StubClients(), Ends()
    async with asyncio.TaskGroup() as tasks:
        box = Outboxes(clients, tasks, replace(LIMITS, frames_in_flight_max=1)).of(A)
        for position, size in enumerate((100, 100, 100, 100, 5000, 100, 600, 600)):
            box.add(copy(ends, position, size))
        assert not clients.sent[A], "nothing leaves before the turn is over"
        await settled()
    assert sizes(clients) == [3, 1, 1, 2, 1]
    assert sorted(ends.acknowledgements) == list(range(8))
    assert box.is_empty


async def test_so_many_frames_are_under_way_and_the_rest_gathers() -> None:
    clients, ends = StubClients(), Ends()
    async with asyncio.TaskGroup() as tasks:
        box = Outboxes(clients, tasks, LIMITS).of(A)
        let_go = clients.hold(A)
        for position in range(6):
            box.add(copy(ends, position))
            await settled()
        assert sizes(clients) == [1, 1]
        assert box.writes == 6
        let_go.set()
        await settled()
        assert sorted(sizes(clients)) == [1, 1, 1, 3]
    assert len(ends.acknowledgements) == 6


async def test_a_copy_whose_time_is_over_before_it_leaves_is_not_sent() -> None:
    clients, ends = StubClients(), Ends()
    async with asyncio.TaskGroup() as tasks:
        box = Outboxes(clients, tasks, LIMITS).of(A)
        now = asyncio.get_running_loop().time()
        box.add(copy(ends, 0, expires_at=now))
        box.add(copy(ends, 1, expires_at=now + 1))
        await settled()
    assert sizes(clients) == [1]
    assert ends.failures[0].error == "deadline_exceeded"
    assert ends.acknowledgements == [1]


async def test_each_copy_of_a_frame_learns_its_own_end() -> None:
    clients, ends = StubClients(), Ends()
    clients.behaviours[A] = lambda _: WriteRowsAnswer(
        (
            WriteFailure(index=1, error="disk_full", outcome="not_applied", message="full"),
            WriteFailure(index=7, error="stale", outcome="not_applied", message="no such one"),
        )
    )
    async with asyncio.TaskGroup() as tasks:
        box = Outboxes(clients, tasks, LIMITS).of(A)
        for position in range(3):
            box.add(copy(ends, position))
        await settled()
    assert ends.acknowledgements == [0, 2]
    assert list(ends.failures) == [1]
    assert ends.failures[1].error == "disk_full"


async def test_a_defect_below_fails_the_copies_and_nothing_else() -> None:
    def broken(_request: WriteRowsRequest) -> WriteRowsAnswer | EblaError:
        raise KeyError("defect")

    clients, ends = StubClients(), Ends()
    clients.behaviours[A] = broken
    async with asyncio.TaskGroup() as tasks:
        box = Outboxes(clients, tasks, LIMITS).of(A)
        box.add(copy(ends, 0))
        await settled()
        assert ends.failures[0].error == "internal"
        clients.behaviours.clear()
        box.add(copy(ends, 1))
        await settled()
    assert ends.acknowledgements == [1]


async def test_copies_end_when_the_shard_stops() -> None:
    clients, ends = StubClients(), Ends()
    clients.hold(A)

    async def shard() -> None:
        async with asyncio.TaskGroup() as tasks:
            box = Outboxes(clients, tasks, LIMITS).of(A)
            for position in range(8):  # two frames are sent, the third waits
                box.add(copy(ends, position))
            await asyncio.Event().wait()

    running = asyncio.ensure_future(shard())
    await settled()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await settled()
    assert sorted(ends.failures) == list(range(8))
    assert {failure.error for failure in ends.failures.values()} == {"connection_lost"}


async def test_a_box_is_full_by_writes_or_bytes_and_stalled_by_silence() -> None:
    clients, ends = StubClients(), Ends()
    limits = RouterLimits(target_writes_max=256, target_bytes_max=2 << 20, stalled_ms=500)
    async with asyncio.TaskGroup() as tasks:
        box = Outboxes(clients, tasks, limits).of(A)
        let_go = clients.hold(A)
        box.add(copy(ends, 0, size=(2 << 20) - 1))
        assert not is_full(box)
        box.add(copy(ends, 1, size=1))
        assert is_full(box)
        await asyncio.sleep(0.4)
        assert not box.is_stalled()
        await asyncio.sleep(0.2)
        assert box.is_stalled()
        let_go.set()
        await settled()
        assert not is_full(box)
        assert not box.is_stalled()
        clients.hold(A)
        for position in range(2, 258):
            assert not is_full(box)
            box.add(copy(ends, position))
        assert is_full(box)
        clients.held[A].set()
        await settled()

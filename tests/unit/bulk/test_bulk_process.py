"""The bulk process against a control of the test's own: it lives, follows, reports what it holds, and compacts."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.async_tests import real_time, runs_in, settled
from tests.unit.bulk.bulk_process_rig import BULK, CONTROL, OURS, Control, node_context, state
from tests.unit.bulk.compaction_service_rig import Compactions, job_of
from tests.unit.bulk.transfer_rig import transfer_config
from tests.unit.topology.world import World
from tests.unit.wire.rig import MemoryTransport

from ebla.model.errors import ConnectionLost, HostLeft
from ebla.model.identity import HostId, SessionId
from ebla.node.bulk_process import BulkProcess
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_clock import SystemClock
from ebla.sim.rng import SimRng
from ebla.topology.keys import STATE, Row, node_key, session_key
from ebla.topology.snapshot import Session
from ebla.topology.states import NodeState, SessionKind
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import COMPACT

pytestmark = runs_in(real_time)

SESSION = SessionId(uuid.UUID(int=5))


class Rig:
    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        self.transport = MemoryTransport()
        self.control = Control(tasks)
        self.runner = Compactions()
        disk = FileDisk()
        around = Environment(clock=SystemClock(), rng=SimRng("test"), disk=disk, transport=self.transport)
        self.bulk = BulkProcess(around, node_context(42), self.runner, transfer_config(folder, disk))
        self.context = PeersContext(
            transport=self.transport, rng=SimRng("test"), introduction=OURS, report=discard_event
        )


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Rig]:
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, folder)
        await rig.transport.listen(CONTROL, rig.control.server.accept)
        bulk = tasks.create_task(rig.bulk.run())
        while BULK not in rig.transport.listeners:  # noqa: ASYNC110  # threads read its files first, without an event
            await asyncio.sleep(0.002)
        yield rig
        bulk.cancel()
        rig.control.server.close("the test is over")


async def test_it_beats_and_reports_each_version_it_has(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.control.tell(3, {STATE: state(7)}, reset=True)
        first = await rig.control.reported(1)
        rig.control.tell(4, {STATE: state(8)})
        second = await rig.control.reported(2)
    assert (first.name, first.pid, first.version, first.oldest_running, first.pending_replicas_open) == (
        "bulk", 42, 7, 7, True
    )  # fmt: skip
    assert (second.version, second.closing_sessions) == (8, ())
    assert second.serial > first.serial
    assert {(beat.name, beat.pid) for beat in rig.control.beats} == {("bulk", 42)}


async def test_its_report_names_the_sessions_that_are_over_while_it_holds_guards_of_them(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        listed: dict[str, Row | None] = {
            STATE: state(7),
            session_key(SESSION): Session(id=SESSION, kind=SessionKind.REQUEST),
        }
        rig.control.tell(3, listed, reset=True)
        await rig.control.reported(1)
        guards = rig.bulk.guards
        assert guards is not None
        with guards.hold_guard_without_barrier(SESSION):
            rig.control.tell(4, {STATE: state(8), session_key(SESSION): None})
            assert (await rig.control.reported(2)).closing_sessions == (SESSION,)
        assert (await rig.control.reported(3)).closing_sessions == ()


async def test_it_compacts_for_a_caller_and_stops_when_the_caller_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        caller, _ = await connect(rig.context, BULK, ConnectionTarget(Lane.DATA, OURS.host))
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(caller.call(COMPACT, job_of(1), 10_000))
            await settled()
            rig.runner.end(1)
        assert asked.result().facts.rows == 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_cut_off(caller))
            await settled()
            caller.close("the shard died")
            await settled()
            assert rig.runner.cancelled == [2]


async def test_it_refuses_peers_of_a_host_that_has_left(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        (address,) = [one for one in rig.transport.listeners if one not in (BULK, CONTROL)]
        former = msgspec.structs.replace(OURS, host=HostId(uuid.UUID(int=77)))
        context = PeersContext(transport=rig.transport, rng=SimRng("test"), introduction=former, report=discard_event)
        rig.control.tell(3, {STATE: state(7)}, reset=True)
        await rig.control.reported(1)
        caller, _ = await connect(context, address, ConnectionTarget(Lane.CONTROL, OURS.host))
        row = msgspec.structs.replace(World().node(1), host=former.host, state=NodeState.LEFT)
        rig.control.tell(4, {STATE: state(8), node_key(former.host): row})
        await rig.control.reported(2)
        assert "left" in await caller.wait_closed()
        with pytest.raises(HostLeft, match="has left the cluster"):
            await connect(context, address, ConnectionTarget(Lane.CONTROL, OURS.host))


async def _cut_off(caller: RpcClientConnection) -> None:
    with pytest.raises(ConnectionLost):
        await caller.call(COMPACT, job_of(2), 10_000)

"""How a peer's loop and its disk share the time."""

import asyncio
from collections.abc import Sequence

from tests.unit.control.test_raft_server import ALONE, CLIENT, Peer, add_one, running, simulate

from ebla.raft.effects import Write
from ebla.raft.messages import EntryKind
from ebla.sim.world import World


def test_a_leader_waits_on_its_loop_only_for_a_disk_without_long_writes_lately() -> None:
    async def scenario(world: World) -> None:
        peer = Peer(world)
        idle_ones: list[bool] = []

        async def write_one(serial: int, sync_ms: float) -> None:
            peer.disk.behaviour.sync_ms = sync_ms
            peer.server.propose(add_one(serial), EntryKind.COMMAND)
            async with asyncio.timeout(5):
                await peer.machine.wait_answer(CLIENT, serial)

        async def work() -> None:
            await peer.lead()
            peer.disk.behaviour.sync_tail = 0.0
            persist = peer.server.log.persist

            async def note(writes: Sequence[Write], *, idle: bool = False) -> None:
                idle_ones.append(idle)
                await persist(writes, idle=idle)

            peer.server.log.persist = note  # type: ignore[method-assign]  # one log, from outside
            await asyncio.sleep(2.0)
            await write_one(1, 0.1)
            await write_one(2, 50.0)
            await write_one(3, 0.1)
            await asyncio.sleep(2.0)
            await write_one(4, 0.1)

        await running(peer, ALONE, work)
        assert idle_ones == [True, True, False, True]

    simulate(scenario)

"""How a peer's loop and its disk share the time."""

import asyncio
from collections.abc import Sequence

from tests.async_tests import runs_in
from tests.unit.control.raft.driver_rig import ALONE, CLIENT, Peer, add_one, running, simulate

from ebla.raft.driver_policy import ROUNDS_TO_RANK
from ebla.raft.effects import LogWrite
from ebla.raft.messages import AppendResponse, EntryKind, Membership, PeerId
from ebla.sim.world import World

TWO, THREE = PeerId(2), PeerId(3)


@runs_in(simulate)
async def test_a_leader_waits_on_its_loop_only_while_no_commit_gets_past_its_own_disk(world: World, /) -> None:
    peer = Peer(world)
    tried_at: list[int] = []

    async def write_one(serial: int) -> None:
        peer.server.propose(add_one(serial), EntryKind.COMMAND)
        async with asyncio.timeout(5):
            await peer.machine.wait_answer(CLIENT, serial)

    async def work() -> None:
        await peer.lead()

        def note(writes: Sequence[LogWrite]) -> bool:
            tried_at.extend(entry.index for write in writes for entry in write.entries)
            return False

        peer.server.log.persist_now = note  # type: ignore[method-assign]  # one log, from outside
        policy, own = peer.server._policy, peer.server.core.peer
        await write_one(1)
        for index in range(1, 1 + ROUNDS_TO_RANK):
            answer = AppendResponse(sender=TWO, to=own, term=peer.server.core.term, index=index)
            policy.acknowledged(answer, Membership(voters=(own, TWO, THREE)))
        await write_one(2)
        last = peer.server.core.last_index
        policy.reset_ranking()
        await write_one(3)

        assert tried_at == [last]

    await running(peer, ALONE, work)

"""Whom a leader asks to take over leadership, and whom it asks next."""

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ebla.control.group0.node import TRANSFER_AGAIN_MS, RunningGroup0
from ebla.control.group0.voter_assignment import Alive
from ebla.group0.members import peer_number
from ebla.model.errors import DeadlineExceeded
from ebla.model.identity import HostId
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.raft.progress import PeerProgress
from ebla.raft.roles import Leader


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number << 100))


def peer(number: int) -> PeerId:
    return PeerId(peer_number(host(number)))


class ScriptedRaft:
    """Host 1 leads, until the host that takes over is asked."""

    def __init__(self, matches: dict[int, int], takes_over: int) -> None:
        progress = {peer(one): cast("PeerProgress", SimpleNamespace(match=match)) for one, match in matches.items()}
        self._numbers = {peer(one): one for one in matches}
        self._takes_over = takes_over
        self.is_leader = True
        role = Leader(leader=peer(1), progress=progress, pending_change_index=0)
        self.core = SimpleNamespace(role=role, leader=peer(1))
        self.asked: list[int] = []

    def post(self, event: TransferLeadership) -> None:
        self.asked.append(self._numbers[event.target])
        if self.asked[-1] == self._takes_over:
            self.core.leader = event.target

    async def wait_status_changed(self) -> None:
        if self.core.leader == peer(1):
            await asyncio.Event().wait()

    def host_of(self, leader: PeerId) -> HostId:
        return host(self._numbers.get(leader, 1))


def running(raft: ScriptedRaft, alive: Alive) -> RunningGroup0:
    parts: Any = raft
    unused: Any = None
    return RunningGroup0(raft=parts, machine=unused, transport=parts, client=unused, alive=alive)


async def test_a_voter_that_is_up_is_asked_before_one_that_lags_less() -> None:
    raft = ScriptedRaft({2: 9, 3: 5}, takes_over=3)
    await running(raft, lambda one: one != host(2)).transfer_leadership((host(2), host(3)), TRANSFER_AGAIN_MS)
    assert raft.asked == [3]


async def test_another_voter_is_asked_if_the_first_does_not_take_over() -> None:
    """It died a moment ago: it lags least, and the failure detector does not know yet."""
    raft = ScriptedRaft({2: 9, 3: 9, 4: 5}, takes_over=4)
    hosts = (host(4), host(3), host(2))
    await running(raft, lambda _: True).transfer_leadership(hosts, 3 * TRANSFER_AGAIN_MS)
    assert raft.asked == [2, 3, 4]


async def test_the_error_names_the_hosts_that_were_asked() -> None:
    raft = ScriptedRaft({2: 9}, takes_over=0)
    with pytest.raises(DeadlineExceeded, match=str(host(2))):
        await running(raft, lambda _: False).transfer_leadership((host(2),), 3 * TRANSFER_AGAIN_MS)
    assert set(raft.asked) == {2}, "the failure detector may be wrong"

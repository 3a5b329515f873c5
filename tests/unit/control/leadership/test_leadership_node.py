"""The shell of leases: no event is left for later, and no unexpected error is passed over."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.async_tests import settled

from ebla.control.leadership.leadership_node import LeadershipDeps, LeadershipNode
from ebla.leadership.lease_agent import DAMAGED_FILE
from ebla.leadership.messages import (
    AbolishLease,
    LeaseAvailable,
    LeaseFileContent,
    LeaseGrant,
    LeaseId,
    LeaseRequest,
    SavedLease,
)
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.identity import HistoryId, HostId
from ebla.model.lease_settings import LeaseSettings
from ebla.wire.server import IncomingCall

OWN, OTHER = HostId(uuid.UUID(int=1)), HostId(uuid.UUID(int=2))
LEASE = LeaseId(uuid.UUID(int=11))
HISTORY = HistoryId(uuid.UUID(int=5))


class Rig:
    """A node that is in no cluster yet, and promises its lease to another host."""

    def __init__(self, *, is_damaged: bool = False) -> None:
        self.is_damaged = is_damaged
        self.events: list[str] = []
        self.ends: list[str] = []
        self.node = LeadershipNode(
            LeadershipDeps(
                environment=cast("Any", SimpleNamespace(clock=self)),
                group0=cast("Any", SimpleNamespace(is_running=False, opened=asyncio.Event())),
                peers=cast("Any", None),
                own=OWN,
                file=cast("Any", self),
                settings=LeaseSettings,
                report=lambda event, _fields: self.events.append(event),
                end_process=self.ends.append,
            )
        )

    def boot_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    async def load(self) -> LeaseFileContent:
        if self.is_damaged:
            return DAMAGED_FILE
        grant = LeaseGrant(OTHER, LEASE, 1)
        return SavedLease(grant=grant, history=HISTORY, term=3, period_ms=15_000, left_ms=15_000)

    async def save(self, content: LeaseFileContent) -> None:
        pass


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[LeadershipNode]:
    task = asyncio.create_task(rig.node.run())
    await settled()
    yield rig.node
    task.cancel()
    await asyncio.wait([task])


async def test_an_event_within_a_step_is_not_left_for_the_next() -> None:
    """A leader that has stepped down abolishes its lease at this node too, which ends it."""
    rig = Rig()
    await rig.node.load()
    rig.node._stepped_down, rig.node._members = [LEASE], (OWN,)
    async with running(rig):
        assert rig.events == ["lease.ended"]


async def test_a_damaged_file_is_a_warning_while_it_blocks_the_lease() -> None:
    rig = Rig(is_damaged=True)
    await rig.node.load()
    assert "nobody gets this node's lease for 120 s" in rig.node.warning()
    async with running(rig) as node:
        await asyncio.sleep(120.0)
        await settled()
        assert node.warning() == ""


def break_(*_: object) -> None:
    raise RuntimeError("a bug")


REQUEST = LeaseRequest(grant=LeaseGrant(OTHER, LEASE, 2), period_ms=15_000, history=HISTORY, term=3)
INCOMING = cast("IncomingCall", SimpleNamespace(peer=SimpleNamespace(host=OTHER)))


async def acquire(node: LeadershipNode) -> None:
    await node.acquire(REQUEST, OTHER)


async def abolish(node: LeadershipNode) -> None:
    node._abolish_received(AbolishLease(LEASE), INCOMING)


async def tell_available(node: LeadershipNode) -> None:
    node.core.renewal = LeaseRenewal(LEASE, 3)
    node.core.renewal.set_members((OTHER,), node.now_ms())
    node._available_received(LeaseAvailable(LEASE, 1), INCOMING)


async def step(node: LeadershipNode) -> None:
    node.step()


@pytest.mark.parametrize(
    ("broken", "event"),
    [
        ("ebla.leadership.lease_agent.LeaseAgent.decide", acquire),
        ("ebla.leadership.lease_agent.LeaseAgent.abolish", abolish),
        ("ebla.leadership.lease_worker.LeaseWorker.available", tell_available),
        ("ebla.leadership.activities.ActivityRegistry.check", step),
    ],
)
async def test_an_unexpected_error_of_an_event_ends_the_process(
    broken: str, event: Callable[[LeadershipNode], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with running(rig) as node:
        monkeypatch.setattr(broken, break_)
        with pytest.raises(RuntimeError):
            await event(node)
        assert rig.ends == ["leases failed: RuntimeError('a bug')"]

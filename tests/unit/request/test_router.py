"""The router as the services of a shard use it."""

import asyncio

import pytest
from tests.unit.request.write_rig import AT_REST, QUORUM, A, B, Clock, CountedView, StubDoors, at_version, mutation

from ebla.feed.topology_view import view_of
from ebla.model.errors import InvalidRequest
from ebla.model.identity import HistoryId
from ebla.model.transaction import Revision
from ebla.observe.metrics import Metrics
from ebla.request.router import Router
from ebla.request.router_types import RouterDeps, RouterLimits


async def test_a_router_writes_and_hands_out_timestamps() -> None:
    view, clients = CountedView(), StubDoors()
    view.install(view_of(at_version(AT_REST, 5), Revision(HistoryId(A.host), 5)))
    async with asyncio.TaskGroup() as tasks:
        router = Router(
            RouterDeps(
                view=view,
                own=A,
                datacenter="dc1",
                clients=clients,
                clock=Clock(),
                limits=RouterLimits(),
                metrics=Metrics(),
                tasks=tasks,
            )
        )
        await router.write([mutation()], QUORUM, 1000)
        with pytest.raises(InvalidRequest):
            await router.write([], QUORUM, 1000)
        assert router.timestamps.next_us() < router.timestamps.next_us()
    assert clients.writes_to(B) == 1

"""The router as the services of a shard use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.request.write_rig import AT_REST, QUORUM, A, B, C, Clock, CountedView, StubClients, at_version, mutation

from ebla.feed.topology_view import view_of
from ebla.model.errors import InvalidRequest, WriteTimeout
from ebla.model.identity import HistoryId
from ebla.model.transaction import Revision
from ebla.observe.metrics import Metrics
from ebla.request.router import Router
from ebla.request.router_types import RouterDeps, RouterLimits

THOUSAND_HOURS_MS = 1_000 * 3_600_000


@asynccontextmanager
async def running(
    clients: StubClients, limits: RouterLimits | None = None
) -> AsyncIterator[tuple[Router, CountedView]]:
    view = CountedView()
    view.install(view_of(at_version(AT_REST, 5), Revision(HistoryId(A.host), 5)))
    async with asyncio.TaskGroup() as tasks:
        yield (
            Router(
                RouterDeps(
                    view=view,
                    own=A,
                    datacenter="dc1",
                    clients=clients,
                    clock=Clock(),
                    limits=limits or RouterLimits(),
                    metrics=Metrics(),
                    tasks=tasks,
                )
            ),
            view,
        )


async def test_a_router_writes() -> None:
    clients = StubClients()
    async with running(clients) as (router, _):
        await router.write([mutation()], QUORUM, 1000)
        with pytest.raises(InvalidRequest):
            await router.write([], QUORUM, 1000)
    assert clients.writes_to(B) == 1


async def test_no_request_waits_longer_than_the_node_allows() -> None:
    """`USING TIMEOUT 1000h` would hold a version of the topology for as long, and barriers wait for it."""
    clients = StubClients()
    released = [clients.hold(target) for target in (A, B, C)]
    async with running(clients, RouterLimits(write_timeout_ms_max=40)) as (router, view):
        began = asyncio.get_running_loop().time()
        with pytest.raises(WriteTimeout) as caught:
            await router.write([mutation()], QUORUM, THOUSAND_HOURS_MS)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert (caught.value.required, caught.value.received) == (2, 0)
        for one in released:
            one.set()
    assert view.held == view.released

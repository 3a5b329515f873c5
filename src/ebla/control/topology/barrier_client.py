"""Asking nodes for a barrier, all at once, each until it has answered, is held to be down, or time is up."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.peers import Peers
from ebla.wire.verbs import NODE_BARRIER

ASK_MS = 2_000
"""For one question: a connection that swallows it must not take all the time there is."""
ASK_AGAIN_MS = 100

OwnBarrier = Callable[[NodeBarrierRequest, int], Awaitable[object]]
"""The barrier on this node, within so many milliseconds."""
Down = Callable[[], tuple[HostId, ...]]
"""Nodes that this one holds to be down."""


@dataclass(frozen=True, slots=True)
class BarrierOutcome:
    """What became of a round of barriers; who is in neither list has it."""

    down: tuple[HostId, ...] = ()
    lacking: tuple[tuple[HostId, str], ...] = ()
    """Up as far as we know, and without an answer in time; each with the last thing heard."""


class BarrierClient:
    def __init__(self, own: HostId, on_own: OwnBarrier, peers: Peers, down: Down) -> None:
        self._own = own
        self._on_own = on_own
        self._peers = peers
        self._down = down
        self._loop = asyncio.get_running_loop()

    async def ask(self, hosts: Iterable[HostId], request: NodeBarrierRequest, deadline_ms: int) -> BarrierOutcome:
        expires_at = self._loop.time() + deadline_ms / 1000
        down: list[HostId] = []
        lacking: dict[HostId, str] = {}
        async with asyncio.TaskGroup() as tasks:
            for host in hosts:
                tasks.create_task(self._ask_one(host, request, expires_at, (down, lacking)))
        return BarrierOutcome(tuple(sorted(down)), tuple(sorted(lacking.items())))

    async def _ask_one(
        self,
        host: HostId,
        request: NodeBarrierRequest,
        expires_at: float,
        told: tuple[list[HostId], dict[HostId, str]],
    ) -> None:
        down, lacking = told
        last = "no answer"
        while (remaining_ms := int((expires_at - self._loop.time()) * 1000)) > 0:
            if host in self._down():
                down.append(host)
                return
            try:
                await self._ask_once(host, request, min(ASK_MS, remaining_ms))
            except EblaError as error:
                last = error.message
                await asyncio.sleep(min(ASK_AGAIN_MS, remaining_ms) / 1000)
            else:
                return
        lacking[host] = last

    async def _ask_once(self, host: HostId, request: NodeBarrierRequest, deadline_ms: int) -> None:
        if host == self._own:
            await self._on_own(request, deadline_ms)
        else:
            await self._peers.call(host, NODE_BARRIER, request, deadline_ms)

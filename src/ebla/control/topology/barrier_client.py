"""Requests a barrier from many nodes at once: until the deadline passes, or until all have acknowledged it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from ebla.model.errors import EblaError
from ebla.model.identity import HostId, TopologyVersion
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.peers import Peers
from ebla.wire.verbs import NODE_BARRIER

CALL_MS = 2_000
"""For one call: a dead connection must not use up the whole deadline."""
RETRY_MS = 100
ROUND_MS = 1_000

OwnBarrier = Callable[[NodeBarrierRequest, int], Awaitable[object]]
"""The barrier on this node, within so many milliseconds."""
DownHosts = Callable[[], tuple[HostId, ...]]
"""The nodes that this one considers down."""


@dataclass(frozen=True, slots=True)
class BarrierOutcome:
    """The outcome of one barrier on many nodes; a node in neither list has passed it."""

    down: tuple[HostId, ...] = ()
    lacking: tuple[tuple[HostId, str], ...] = ()
    """Not known to be down, and without an answer in time; each with its last error."""

    def describe_lacking(self) -> str:
        return "; ".join(f"host {host}: {cause}" for host, cause in self.lacking)


class BarrierClient:
    def __init__(self, own: HostId, on_own: OwnBarrier, peers: Peers, down: DownHosts) -> None:
        self._own = own
        self._on_own = on_own
        self._peers = peers
        self._down = down
        self._loop = asyncio.get_running_loop()

    async def request(self, hosts: Iterable[HostId], request: NodeBarrierRequest, deadline_ms: int) -> BarrierOutcome:
        expires_at = self._loop.time() + deadline_ms / 1000
        down: list[HostId] = []
        lacking: dict[HostId, str] = {}
        async with asyncio.TaskGroup() as tasks:
            for host in hosts:
                tasks.create_task(self._request_one(host, request, expires_at, down, lacking))
        return BarrierOutcome(tuple(sorted(down)), tuple(sorted(lacking.items())))

    async def wait_all(
        self,
        version: TopologyVersion,
        awaited: Callable[[], tuple[HostId, ...]],
        on_missing: Callable[[Mapping[HostId, str]], None],
    ) -> None:
        """Until all of them have drained the older versions; time alone never passes it. `awaited` may shrink
        meanwhile, by an exclusion. `on_missing` gets what each of the others lacks, in its own words, every round."""
        acknowledged: set[HostId] = set()
        request = NodeBarrierRequest(version, drain=True)
        while asked := tuple(host for host in awaited() if host not in acknowledged):
            again_at = self._loop.time() + ROUND_MS / 1000
            lacking = dict(await asyncio.gather(*(self._lacks(host, request) for host in asked)))
            acknowledged.update(host for host in asked if not lacking[host])
            missing = {host: lacking[host] for host in asked if lacking[host]}
            if missing:
                on_missing(missing)
                await asyncio.sleep(max(0.0, again_at - self._loop.time()))

    async def _lacks(self, host: HostId, request: NodeBarrierRequest) -> tuple[HostId, str]:
        """What it lacks; empty: it has acknowledged the version."""
        try:
            await self._call(host, request, ROUND_MS)
        except EblaError as error:
            return host, error.message
        return host, ""

    async def _request_one(
        self,
        host: HostId,
        request: NodeBarrierRequest,
        expires_at: float,
        down: list[HostId],
        lacking: dict[HostId, str],
    ) -> None:
        last = "no answer"
        while (remaining_ms := int((expires_at - self._loop.time()) * 1000)) > 0:
            if host in self._down():
                down.append(host)
                return
            try:
                await self._call(host, request, min(CALL_MS, remaining_ms))
            except EblaError as error:
                last = error.message
                await asyncio.sleep(min(RETRY_MS, remaining_ms) / 1000)
            else:
                return
        lacking[host] = last

    async def _call(self, host: HostId, request: NodeBarrierRequest, deadline_ms: int) -> None:
        if host == self._own:
            await self._on_own(request, deadline_ms)
        else:
            await self._peers.call(host, NODE_BARRIER, request, deadline_ms)

"""The operator's questions to one node, each over a connection of its own."""

from collections.abc import Awaitable
from typing import Protocol

from ebla.model.identity import Address
from ebla.model.transaction import Revision
from ebla.topology.keys import PREFIX
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import from_group0
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import Group0ReadAnswer, Group0ReadRequest
from ebla.wire.group0_pages import ReadPager
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import GROUP0_READ, STATUS, STOP, A, Q, StatusAnswer, StatusRequest, StopRequest, Verb


class AdminClient:
    """`address` is the node's own Unix socket, or its control address where the context has certificates."""

    def __init__(self, context: PeersContext, deadline_ms: int) -> None:
        self._context = context
        self._deadline_ms = deadline_ms

    async def status(self, address: Address) -> StatusAnswer:
        return await self.ask(address, STATUS, StatusRequest())

    async def stop(self, address: Address, reason: str) -> None:
        """Returns once the node has taken note; it goes some time after."""
        await self.ask(address, STOP, StopRequest(reason))

    async def ask(self, address: Address, verb: Verb[Q, A], request: Q, lane: Lane = Lane.CONTROL) -> A:
        caller, _ = await connect(self._context, address, ConnectionTarget(lane))
        try:
            return await caller.call(verb, request, self._deadline_ms)
        finally:
            caller.close("answered")


class VerbCaller(Protocol):
    """One question to a process of a node."""

    def __call__(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> Awaitable[A]: ...


async def read_all_pages(ask: VerbCaller, request: Group0ReadRequest, deadline_ms: int) -> Group0ReadAnswer:
    """However much it is; the time is for each page."""
    pages = ReadPager(request)
    while (whole := pages.take(await ask(GROUP0_READ, pages.request(), deadline_ms))) is None:
        pass
    return whole


async def read_topology(ask: VerbCaller, deadline_ms: int) -> tuple[Snapshot, Revision]:
    """Linearizable."""
    whole = await read_all_pages(ask, Group0ReadRequest(keys=(), prefixes=(PREFIX,), quorum=True), deadline_ms)
    return from_group0({entry.key: (entry.value, entry.revision) for entry in whole.found}), whole.revision

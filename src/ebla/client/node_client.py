"""Calls to one node, each over its own connection, and reads of group 0 in pages."""

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
    """`address` is the node's Unix socket, or its control address if the context has certificates."""

    def __init__(self, context: PeersContext, deadline_ms: int) -> None:
        self._context = context
        self._deadline_ms = deadline_ms

    async def status(self, address: Address) -> StatusAnswer:
        return await self.call(address, STATUS, StatusRequest())

    async def stop(self, address: Address, reason: str) -> None:
        """Returns once the node has accepted the request; it stops some time later."""
        await self.call(address, STOP, StopRequest(reason))

    async def call(self, address: Address, verb: Verb[Q, A], request: Q, lane: Lane = Lane.CONTROL) -> A:
        connection, _ = await connect(self._context, address, ConnectionTarget(lane))
        try:
            return await connection.call(verb, request, self._deadline_ms)
        finally:
            connection.close("answered")


class VerbCaller(Protocol):
    """Calls a verb of one process of a node."""

    def __call__(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> Awaitable[A]: ...


async def read_all_pages(call: VerbCaller, request: Group0ReadRequest, deadline_ms: int) -> Group0ReadAnswer:
    """Reads all pages; the timeout is for each page."""
    pages = ReadPager(request)
    while (whole := pages.take(await call(GROUP0_READ, pages.request(), deadline_ms))) is None:
        pass
    return whole


async def read_topology(call: VerbCaller, deadline_ms: int) -> tuple[Snapshot, Revision]:
    """Linearizable."""
    whole = await read_all_pages(call, Group0ReadRequest(keys=(), prefixes=(PREFIX,), quorum=True), deadline_ms)
    return from_group0({entry.key: (entry.value, entry.revision) for entry in whole.found}), whole.revision

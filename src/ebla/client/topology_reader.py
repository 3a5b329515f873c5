"""The topology as a client reads it from group 0."""

from collections.abc import Awaitable
from typing import Protocol

from ebla.model.transaction import Revision
from ebla.topology.keys import PREFIX
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import from_group0
from ebla.wire.group0_messages import Group0ReadAnswer, Group0ReadRequest
from ebla.wire.group0_pages import ReadPager
from ebla.wire.verbs import GROUP0_READ, A, Q, Verb


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

"""Clients that write unique values to group 0 without pause, and record the outcome of each write."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from tests.cluster.background import Background
from tests.cluster.node_calls import calling

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.group0.commands import Done
from ebla.model.errors import EblaError, Outcome
from ebla.model.transaction import PutKey, Transaction
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.frames import Lane
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadAnswer, Group0ReadRequest, Group0Report, MembersRequest
from ebla.wire.group0_pages import ReadPager
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_MEMBERS, GROUP0_READ, A, Q, Verb

DEADLINE_MS = 4_000
CLIENTS_PER_NODE = 2
PREFIX = "user/load/"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    sent_at: float
    answered_at: float


@dataclass(slots=True)
class Record:
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    not_applied: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


class Group0Load(Background):
    """Writes to every given node, through the node's own socket, until the context ends."""

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        super().__init__(2 * DEADLINE_MS / 1000 + 5)
        self._nodes = list(nodes)
        self.record = Record()

    def wait_service_after(self, moment: float, seconds: float) -> float:
        """How long after `moment` a write that was sent after it was acknowledged. Fails after the bound."""
        while time.monotonic() < moment + seconds:
            later = [one for one in list(self.record.acknowledged.values()) if one.sent_at >= moment]
            if later:
                return min(one.answered_at for one in later) - moment
            time.sleep(0.01)
        raise AssertionError(f"no write was acknowledged for {seconds} s")

    def work(self) -> None:
        asyncio.run(self._clients())

    async def _clients(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for node, number in itertools.product(self._nodes, range(CLIENTS_PER_NODE)):
                tasks.create_task(self._write(node, number))

    async def _write(self, node: LocalNode, number: int) -> None:
        serials = itertools.count()
        while not self.stopped.is_set():
            try:
                async with asking(node) as caller:
                    while not self.stopped.is_set():
                        await self._put(caller, f"{PREFIX}{node.name}/{number}/{next(serials):06d}")
            except EblaError:
                await asyncio.sleep(0.02)

    async def _put(self, caller: RpcClientConnection, key: str) -> None:
        sent_at = time.monotonic()
        request = ExecuteRequest(Transaction((), (PutKey(key, key.encode()),)))
        try:
            answer = (await caller.call(GROUP0_EXECUTE, request, DEADLINE_MS)).answer
        except EblaError as error:
            kept = self.record.unknown if error.outcome is Outcome.UNKNOWN else self.record.not_applied
            kept[key] = str(error)
            raise
        assert isinstance(answer, Done), answer
        self.record.acknowledged[key] = Acknowledged(sent_at, time.monotonic())


def asking(node: LocalNode) -> AbstractAsyncContextManager[RpcClientConnection]:
    return calling(node, node.folder.control_socket, Lane.CONTROL)


def ask(node: LocalNode, verb: Verb[Q, A], request: Q, deadline_ms: int = DEADLINE_MS) -> A:
    async def run() -> A:
        async with asking(node) as caller:
            return await caller.call(verb, request, deadline_ms)

    return asyncio.run(run())


def report_of(node: LocalNode) -> Group0Report | None:
    """None if the node does not answer, or is in no group yet."""
    try:
        return ask(node, GROUP0_MEMBERS, MembersRequest())
    except EblaError:
        return None


def read_all(node: LocalNode, prefix: str, *, quorum: bool = True) -> Group0ReadAnswer:
    pages = ReadPager(Group0ReadRequest(keys=(), prefixes=(prefix,), quorum=quorum))
    while (whole := pages.take(ask(node, GROUP0_READ, pages.request(), 10_000))) is None:
        pass
    return whole

"""Clients that write unique values to group 0 without pause, and remember what became of each."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

from ebla.cli.local_cluster import LocalNode
from ebla.group0.commands import Done
from ebla.model.errors import EblaError, Outcome
from ebla.model.identity import Address
from ebla.model.transaction import Put, Transaction
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.wire.calls import Caller, Target
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import ExecuteRequest, Group0Report, MembersRequest, ReadAnswer, ReadRequest
from ebla.wire.group0_pages import ReadPages
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.report import unreported
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


class Group0Load:
    """A context: it writes to every node it is given, through each node's own socket, until it is left."""

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        self._nodes = list(nodes)
        self.record = Record()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Group0Load":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * DEADLINE_MS / 1000 + 5)
        assert not self._thread.is_alive(), "a client does not end"

    def wait_service_after(self, moment: float, seconds: float) -> float:
        """How long after the moment a write was acknowledged that was sent after it. Fails after the bound."""
        while time.monotonic() < moment + seconds:
            later = [one for one in list(self.record.acknowledged.values()) if one.sent_at >= moment]
            if later:
                return min(one.answered_at for one in later) - moment
            time.sleep(0.01)
        raise AssertionError(f"no write was acknowledged for {seconds} s")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for node, number in itertools.product(self._nodes, range(CLIENTS_PER_NODE)):
                tasks.create_task(self._write(node, number))

    async def _write(self, node: LocalNode, number: int) -> None:
        serials = itertools.count()
        while not self._stop.is_set():
            try:
                async with asking(node) as caller:
                    while not self._stop.is_set():
                        await self._put(caller, f"{PREFIX}{node.name}/{number}/{next(serials):06d}")
            except EblaError:
                await asyncio.sleep(0.02)

    async def _put(self, caller: Caller, key: str) -> None:
        sent_at = time.monotonic()
        request = ExecuteRequest(Transaction((), (Put(key, key.encode()),)))
        try:
            answer = (await caller.call(GROUP0_EXECUTE, request, DEADLINE_MS)).answer
        except EblaError as error:
            kept = self.record.unknown if error.outcome is Outcome.UNKNOWN else self.record.not_applied
            kept[key] = str(error)
            raise
        assert isinstance(answer, Done), answer
        self.record.acknowledged[key] = Acknowledged(sent_at, time.monotonic())


@asynccontextmanager
async def asking(node: LocalNode) -> AsyncIterator[Caller]:
    identity = node.folder.read_identity()
    assert identity is not None
    introduction = Introduction(identity.host, identity.cluster, identity.cluster_name, "test")
    async with TcpTransport(None, TransportLimits(), unreported) as transport:
        context = PeersContext(transport, SystemChance(), introduction, WireLimits(), unreported)
        caller, _ = await connect(context, Address(str(node.folder.control_socket)), Target(Lane.CONTROL))
        try:
            yield caller
        finally:
            caller.close("done")


def ask(node: LocalNode, verb: Verb[Q, A], request: Q, deadline_ms: int = DEADLINE_MS) -> A:
    async def run() -> A:
        async with asking(node) as caller:
            return await caller.call(verb, request, deadline_ms)

    return asyncio.run(run())


def report_of(node: LocalNode) -> Group0Report | None:
    """None where the node does not answer, or is in no group yet."""
    try:
        return ask(node, GROUP0_MEMBERS, MembersRequest())
    except EblaError:
        return None


def read_all(node: LocalNode, prefix: str, *, quorum: bool = True) -> ReadAnswer:
    pages = ReadPages(ReadRequest((), (prefix,), quorum))
    while (whole := pages.take(ask(node, GROUP0_READ, pages.request(), 10_000))) is None:
        pass
    return whole

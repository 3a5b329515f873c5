"""Group 0's store without Raft, control's feed on it, and a way to call that without a network."""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, cast

from tests.unit.wire.rig import introduction

from ebla.aio.eager import Suspended
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.control.topology.committed_topology import CommittedTopology
from ebla.control.topology.feed_service import PAGE_BYTES_MAX, FeedConfig, TopologyFeedService
from ebla.group0.commands import CallId, Group0Command, encode_command
from ebla.group0.snapshot import StoreBuilder, encode, freeze
from ebla.group0.store import Group0Store, HistoryStart
from ebla.model.errors import DeadlineExceeded, Unavailable, Unreachable
from ebla.model.identity import HistoryId, HostId, TopologyVersion
from ebla.model.transaction import Change, PutKey, Revision, Transaction
from ebla.raft.messages import Entry
from ebla.sim.world import World
from ebla.topology import keys
from ebla.topology.snapshot import TopologyState as StateRow
from ebla.wire.feed_messages import ChildReport, FeedRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import A, Q, Verb

HISTORY = HistoryId(uuid.UUID(int=7))
HOST = HostId(uuid.UUID(int=1))
V = TopologyVersion
_clients = itertools.count(1)


def in_virtual_time(story: Callable[[], Awaitable[None]]) -> None:
    async def run(_world: World) -> None:
        await story()

    World(seed=1, seconds=120.0).run(run)


def state_put(version: int, fence: int = 1) -> PutKey:
    return PutKey(keys.STATE, keys.encode(StateRow(version=V(version), fence=V(fence))))


class FeedStore:
    """A store that commits the given changes, one index after another."""

    def __init__(self, history: HistoryId = HISTORY) -> None:
        self.machine = Group0StateMachine(Group0Store((HistoryStart(history, 0),)))
        self._serials = itertools.count(1)
        self._client = uuid.UUID(int=next(_clients))

    @property
    def store(self) -> Group0Store:
        return self.machine.store

    def commit(self, *changes: Change) -> Revision:
        serial = next(self._serials)
        command = Group0Command(
            CallId(client=self._client, incarnation=1, serial=serial, answered_through=serial - 1),
            Transaction((), changes),
        )
        self.machine.apply(Entry(index=self.store.index + 1, term=1, data=encode_command(command)))
        return self.store.revision

    def version(self, version: int, fence: int = 1) -> Revision:
        return self.commit(state_put(version, fence))

    def copy(self) -> "FeedStore":
        """The same state as a node finds it after a restart: nothing is known of how it came about."""
        restarted = FeedStore()
        builder = StoreBuilder()
        for chunk in encode(freeze(self.store)):
            builder.add(chunk)
        restarted.machine.install(builder.finish())
        return restarted


class ControlLife:
    """One control process, from its start to its end, on the tasks of a test."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        feed_store: FeedStore,
        expected: tuple[str, ...] = ("shard-0",),
        page_bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        self.feed_store = feed_store
        self.down: tuple[HostId, ...] = ()
        self.has_quorum = True
        self.barriers: list[asyncio.Future[None]] = []
        """Read barriers under way, where the test wants to end them itself."""
        self.holds_barriers = False
        self.barriers_asked = 0
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.state = CommittedTopology(self.report)
        self.state.attach(feed_store.machine)
        setup = FeedConfig(
            read_barrier=self._read_barrier,
            down=lambda: self.down,
            expected=lambda: expected,
            serving=lambda: True,
            page_bytes_max=page_bytes_max,
        )
        self.feed = TopologyFeedService(self.state, setup)
        self._server = Server(tasks, introduction(1), self.report)
        self.feed.serve_children(self._server)
        self.feed.serve_peers(self._server)
        self._running = tasks.create_task(self.feed.run())

    def report(self, event: str, details: Mapping[str, object]) -> None:
        self.events.append((event, details))

    def end(self) -> None:
        self._running.cancel()

    async def _read_barrier(self, deadline_ms: int) -> Revision:
        self.barriers_asked += 1
        if self.holds_barriers:
            held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.barriers.append(held)
            await held
        if not self.has_quorum:
            await asyncio.sleep(deadline_ms / 1000)
            raise Unavailable("no quorum")
        return self.feed_store.store.revision

    async def call(self, verb: Verb[Q, A], request: Q, deadline_ms: int = 2_000) -> A:
        loop = asyncio.get_running_loop()
        served = self._server.verbs[verb.number]
        call = IncomingCall(
            peer=introduction(2), lane=verb.lane, expires_at=loop.time() + deadline_ms / 1000, loop=loop
        )
        answer = served.begin(request, call)
        if type(answer) is not Suspended:
            return cast("A", answer)
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                return cast("A", await answer)
        except TimeoutError:
            raise DeadlineExceeded("no answer") from None


class ControlSocket:
    """Where a child finds its control: whichever lives, if any."""

    def __init__(self) -> None:
        self.life: ControlLife | None = None
        self.calls: list[Any] = []
        self.paged = asyncio.Event()
        """Set once a second page of a whole state was asked for."""
        self._gone = asyncio.Event()

    def point_to(self, life: ControlLife | None) -> None:
        """Calls to the one before end with an error."""
        self.life = life
        gone, self._gone = self._gone, asyncio.Event()
        gone.set()

    async def call(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        assert host == HOST
        self.calls.append(request)
        if isinstance(request, FeedRequest) and request.after_key:
            self.paged.set()
        await asyncio.sleep(0.001)
        life, gone = self.life, self._gone
        if life is None:
            raise Unreachable("no listener")
        asking: Coroutine[Any, Any, A] = life.call(verb, request, deadline_ms)
        answer = asyncio.ensure_future(asking)
        leaving = asyncio.ensure_future(gone.wait())
        await asyncio.wait([answer, leaving], return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not answer.done():
            answer.cancel()
            raise Unreachable("it hung up")
        return answer.result()

    def reports(self) -> list[ChildReport]:
        return [request for request in self.calls if isinstance(request, ChildReport)]

"""Taps on a shard: they record what its router sends and what its replicas do, in the step in which it happens.

They reach into private parts on purpose: a part that forgot to hold a version would also forget to report it.
"""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ebla.feed.shard_peers import ShardAddresses
from ebla.feed.topology_view import View
from ebla.model.errors import EblaError
from ebla.model.identity import Replica, SessionId, TopologyVersion
from ebla.node.shard_process import MakeReplicaClients
from ebla.ports.rng import Rng
from ebla.replica.adoption import origin_of
from ebla.replica.replica_server import ReplicaServer
from ebla.request.router_types import LocalReplica
from ebla.request.shard_clients import ShardClients
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.storage.codec.key_codec import encode_token
from ebla.storage.manifest import ManifestEdit
from ebla.topology.tablet_stages import pending_replicas
from ebla.wire.peers import PeersContext
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    StreamRowsRequest,
    WriteRowsAnswer,
    WriteRowsRequest,
)
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest
from ebla.wire.verbs import EmptyAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebla.replica.row_writes import ReplicaWriter
    from ebla.storage.layers.layer import Item, Layer
    from ebla.storage.stack import Stack
    from ebla.storage.store import ShardStore

ECHO_SHARE = 0.06
ECHO_MS = 1_500
ECHO_S_MAX = 6.0
_WRITE: contextvars.ContextVar[AdoptRequest | None] = contextvars.ContextVar("write", default=None)
"""An adoption that is a write."""
_SESSION: contextvars.ContextVar[SessionId | None] = contextvars.ContextVar("session", default=None)


class ShardTaps:
    """For one incarnation of a shard."""

    def __init__(self, ledger: BarrierLedger, own: Replica, now: Callable[[], float]) -> None:
        self._ledger = ledger
        self.own = own
        self._now = now
        self._events = 0
        self._sending: dict[int, TopologyVersion] = {}
        self._writing: dict[int, TopologyVersion] = {}
        """Writes that the replica is working on, by order of arrival."""
        self._installs: list[tuple[TopologyVersion, int]] = []
        self._view: View | None = None
        self._in_write = False
        self.replica: ReplicaServer | None = None

    # -- from the shard ----------------------------------------------------------------------------------------------

    def watch(self, replica: ReplicaServer) -> None:
        self.replica = replica
        self._watch_writer(replica.writer)
        self._watch_streams(replica)

    def on_view_installed(self, view: View) -> None:
        self._view = view
        self._events += 1
        self._installs.append((view.version, self._events))
        self._ledger.saw(view.snapshot)

    @contextmanager
    def sending(self, version: TopologyVersion, target: Replica) -> "Iterator[None]":
        self._ledger.sent(self.own, version, target)
        self._events += 1
        number = self._events
        self._sending[number] = version
        try:
            yield
        finally:
            del self._sending[number]

    # -- at a barrier ------------------------------------------------------------------------------------------------

    def at_barrier(self, version: TopologyVersion) -> None:
        """A barrier of this version has just returned while this incarnation is alive."""
        view = self._view
        if view is None:
            return  # it is starting, and will get a state that is at least as new
        name = f"shard {self.own.shard} of host {self.own.host}"
        if view.version < version:
            self._ledger.fail(f"INV-ROWS-4: {name} has version {view.version}, the barrier of {version} returned")
        for sent in self._sending.values():
            if sent < version:
                self._ledger.fail(f"INV-ROWS-2: {name} waits for answers to version {sent}, not {version}")
        since = next((event for on_view_installed, event in self._installs if on_view_installed >= version), None)
        for event, written in self._writing.items():
            if since is not None and event < since and written < version:
                self._ledger.fail(f"INV-ROWS-2: {name} still makes a write of version {written}, not {version}")
        self._check_guards(name)
        self._check_pending(name, view)

    def _check_guards(self, name: str) -> None:
        assert self.replica is not None
        for session in self.replica.context.guards.closing:
            if self._ledger.is_closed(self.own.host, session):
                self._ledger.fail(f"INV-ROWS-3: {name} holds a guard of session {session}, and a barrier returned")

    def _check_pending(self, name: str, view: View) -> None:
        assert self.replica is not None
        stacks = self.replica.context.stacks
        for table, tablets in view.snapshot.tablets.items():
            for number, transition in tablets.transitions():
                pending = pending_replicas(tablets.replicas(number), transition.new_replicas)
                if self.own in pending and stacks.find(table, encode_token(tablets.last_token(number))) is None:
                    self._ledger.fail(f"INV-ROWS-4: {name} has no replica of tablet {number}, which is pending here")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _watch_writer(self, writer: "ReplicaWriter") -> None:
        apply, finish = writer._apply, writer._finish  # noqa: SLF001  # the effect itself

        def watched_apply(batch: Any, stack: "Stack", live: "Layer", indexes: Sequence[int]) -> None:
            made = len(batch.made)
            self._in_write = True
            try:
                apply(batch, stack, live, indexes)
            finally:
                self._in_write = False
            for index in batch.made[made:]:
                self._ledger.effect(self.own, batch.writes[index].version)

        async def watched_finish(batch: Any, deadline_ms: int) -> WriteRowsAnswer:
            self._events += 1
            number = self._events
            self._writing[number] = min(write.version for write in batch.writes)
            try:
                return await finish(batch, deadline_ms)
            finally:
                del self._writing[number]

        writer._apply = watched_apply  # type: ignore[method-assign]  # noqa: SLF001  # records, and does the same
        writer._finish = watched_finish  # type: ignore[method-assign]  # noqa: SLF001  # records, and does the same

    def _watch_streams(self, replica: ReplicaServer) -> None:
        streams, store = replica.streams, replica.context.store
        stream, write_open = streams.stream, store.write_open

        async def watched_stream(request: StreamRowsRequest, deadline_ms: int) -> EmptyAnswer:
            token = _SESSION.set(request.session)
            try:
                return await stream(request, deadline_ms)
            finally:
                _SESSION.reset(token)

        def watched_open(stack: "Stack", live: "Layer", items: "Sequence[Item]") -> int:
            if not self._in_write:
                self._note_adopted(_WRITE.get())
                self._ledger.streamed(self.own, _SESSION.get(), len(items))
            return write_open(stack, live, items)

        adopt = replica.adoptions.adopt

        async def watched_adopt(request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
            write = None if request.version is None else request
            tokens = _SESSION.set(request.session), _WRITE.set(write)
            self._events += 1
            number = self._events
            if request.version is not None:
                self._writing[number] = request.version
            try:
                return await adopt(request, deadline_ms)
            finally:
                self._writing.pop(number, None)
                _SESSION.reset(tokens[0])
                _WRITE.reset(tokens[1])

        self._watch_layers(store)
        replica.adoptions.adopt = watched_adopt  # type: ignore[method-assign]  # records, and does the same
        streams.stream = watched_stream  # type: ignore[method-assign]  # records, and does the same
        store.write_open = watched_open  # type: ignore[method-assign]  # records, and does the same

    def _watch_layers(self, store: "ShardStore") -> None:
        manifest = store.manifest  # where layers take effect
        change = manifest.change

        async def watched(edit: ManifestEdit, then: Callable[[], None] = lambda: None) -> None:
            write = _WRITE.get()

            def noted() -> None:
                before = _is_there(store, write)
                then()
                if _is_there(store, write) and not before:
                    self._note_adopted(write)

            await change(edit, noted)

        manifest.change = watched  # type: ignore[method-assign]  # records, and does the same

    def _note_adopted(self, write: AdoptRequest | None) -> None:
        if write is not None and write.version is not None:
            self._ledger.effect(self.own, write.version)


def _is_there(store: "ShardStore", write: AdoptRequest | None) -> bool:
    origin = "" if write is None else origin_of(write.session, write.transfer)
    return any(origin in stack.entry.adopted for stack in store.stacks.values())


class WatchedReplicaClients(ShardClients):
    """Some requests arrive once more, late, as a network may deliver them after the sender has given up."""

    def watch(self, taps: ShardTaps, rng: Rng, tasks: asyncio.TaskGroup) -> None:
        self._taps = taps
        self._rng = rng
        self._echo_tasks = tasks

    async def write(self, target: Replica, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        with self._taps.sending(min(write.version for write in request.writes), target):
            if self._rng.random() < ECHO_SHARE:
                self._echo_tasks.create_task(self._echo(target, request))
            return await super().write(target, request, deadline_ms)

    async def read(self, target: Replica, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        with self._taps.sending(request.version, target):
            return await super().read(target, request, deadline_ms)

    async def read_own(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        with self._taps.sending(request.version, self._taps.own):
            return await super().read_own(request, deadline_ms)

    async def _echo(self, target: Replica, request: WriteRowsRequest) -> None:
        await asyncio.sleep(self._rng.random() * self._rng.random() * ECHO_S_MAX)
        try:
            await super().write(target, request, ECHO_MS)
        except EblaError:
            pass  # no caller waits for it


def watched_replica_clients(taps: ShardTaps, rng: Rng) -> MakeReplicaClients:
    def make(
        tasks: asyncio.TaskGroup, context: PeersContext, addresses: ShardAddresses, local: LocalReplica
    ) -> WatchedReplicaClients:
        clients = WatchedReplicaClients(tasks, context, addresses, local)
        clients.watch(taps, rng, tasks)
        return clients

    return make

"""The snapshots of one Raft peer: takes its own, sends them to peers that lag, and stores those that a leader sends.

All of it runs beside the driver's turns. What comes of it is posted to the driver as events.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Generic

from ebla.control.raft.config import Content, RaftConfig, RaftTransport, StateMachine
from ebla.control.raft.snapshot_receiver import SnapshotActions, SnapshotReceiver
from ebla.control.raft.storage import RaftStorage
from ebla.model.errors import Corruption, DiskFull, EblaError, Refused
from ebla.ports.environment import Environment
from ebla.raft.core import RaftCore
from ebla.raft.events import Compact, RaftEvent, SnapshotSent, SnapshotTaken
from ebla.raft.messages import InstallSnapshot, SnapshotMeta
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer


class RaftSnapshots(Generic[Content]):
    def __init__(
        self,
        environment: Environment,
        config: RaftConfig,
        *,
        machine: StateMachine[Content],
        transport: RaftTransport,
        storage: RaftStorage,
        core: RaftCore,
        post: Callable[[RaftEvent], None],
    ) -> None:
        self._config = config
        self._machine = machine
        self._transport = transport
        self._storage = storage
        self._core = core
        self._post = post
        self._bytes_since_last = 0
        self._is_taking = False
        self._stored: dict[SnapshotMeta, Content] = {}
        """Received and durable; the core decides which one it installs."""
        actions = SnapshotActions(
            new_sink=machine.receiver,
            new_file=storage.begin_snapshot,
            is_wanted=self._is_wanted,
            on_stored=self._on_stored,
            on_unneeded=post,
        )
        self._receiver = SnapshotReceiver(environment.disk, environment.clock, actions)

    # ---- our own

    def applied(self, payload_bytes: int, tasks: asyncio.TaskGroup) -> None:
        """Right after entries were applied, while core and state machine are at the same index. Takes a snapshot if one
        is due."""
        self._bytes_since_last += payload_bytes
        config, log = self._config, self._core.state.log
        entries = log.applied - log.snapshot.index
        is_due = entries >= config.snapshot_entries_max or self._bytes_since_last >= config.snapshot_bytes_max
        if not is_due or self._is_taking:
            return
        term = log.term_at(log.applied)
        assert term is not None, "the entry applied last is in the log"
        meta = SnapshotMeta(log.applied, term, self._core.membership)
        self._is_taking = True
        self._bytes_since_last = 0
        tasks.create_task(self._take(meta, self._machine.freeze()))

    async def _take(self, meta: SnapshotMeta, content: Iterator[bytes]) -> None:
        report = self._config.report
        try:
            await self._storage.store_snapshot(meta, content)
            await self._storage.adopt_snapshot(meta)
        except (DiskFull, FileNotFoundError) as error:
            # The log is complete without it, and the next applied entry tries again. A missing file was removed
            # because a leader's newer snapshot replaced it.
            report("raft.snapshot_failed", {"index": meta.index, "cause": str(error)})
        else:
            report("raft.snapshot_taken", {"index": meta.index})
            self._post(SnapshotTaken(meta))
            self._post(Compact(max(meta.index - self._config.kept_entries, 0)))
        finally:
            self._is_taking = False

    async def send(self, message: InstallSnapshot) -> None:
        delivered = False
        try:
            async with aclosing(self._storage.read_snapshot(message.snapshot)) as chunks:
                await self._transport.send_snapshot(message, chunks)
            delivered = True
        except (FileNotFoundError, EblaError) as error:
            # A newer snapshot may have replaced it meanwhile; the core then sends that one.
            if isinstance(error, Corruption):
                raise
            self._config.report("raft.snapshot_not_delivered", {"to": message.to, "cause": str(error)})
        self._post(SnapshotSent(message.to, delivered))

    # ---- a leader's

    async def receive(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> SnapshotChunkAnswer:
        message = chunk.message
        if message.term < self._core.term:
            raise Refused(
                f"a leader of term {message.term} sends a snapshot, and this peer is in term {self._core.term}"
            )
        if chunk.number == 0:
            if not self._is_wanted(message):
                self._post(message)
                return SnapshotChunkAnswer(stored=True)
            self._config.report("raft.snapshot_begins", {"index": message.snapshot.index, "sender": message.sender})
        return await self._receiver.take(chunk, tasks)

    def drop_idle(self) -> None:
        self._receiver.drop_idle()

    def install(self, meta: SnapshotMeta) -> None:
        """The core installs this one, which is durable."""
        content = self._stored[meta]
        self._keep_after(meta.index)
        self._machine.install(content)
        self._bytes_since_last = 0

    def _is_wanted(self, message: InstallSnapshot) -> bool:
        """If not, the core ignores its content, and its answer says how far this peer is."""
        return message.snapshot.index > self._core.commit_index

    async def _on_stored(self, message: InstallSnapshot, content: Content) -> None:
        meta = message.snapshot
        self._config.report("raft.snapshot_received", {"index": meta.index})
        before = self._config.before_first_snapshot
        if before is not None and self._core.state.log.snapshot.index == 0:
            await before(self._storage.log_id)
        # The core never installs an older snapshot than it has.
        self._keep_after(self._core.state.log.snapshot.index)
        self._stored[meta] = content
        self._post(message)

    def _keep_after(self, index: int) -> None:
        self._stored = {meta: content for meta, content in self._stored.items() if meta.index > index}

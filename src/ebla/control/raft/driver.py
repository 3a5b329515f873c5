"""One Raft peer at work: drives the core, its log on disk and its messages. Decides nothing.

Whatever comes in waits for the next turn, or has one at once in calm times: `_turn` feeds all of it to the core and
carries out what the core asks for. All waiting writes are made durable with one sync, begun in the turn itself and
ended by `_write` if it takes time, while the next batch gathers; `_tick` lets time pass. What a write's answers promise
leaves only after its sync (rule 2 of `raft/effects.py`); appends to others leave at once, so the leader's disk and the
followers' work side by side.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from ebla.aio.eager_coroutine import EagerCoroutine
from ebla.control.raft.append_sender import AppendSender, SendActions
from ebla.control.raft.commit_notices import CommitNotices
from ebla.control.raft.read_index import ReadIndexRounds, fail_readers
from ebla.control.raft.snapshot_receiver import SnapshotActions, SnapshotReceiver, SnapshotSink
from ebla.control.raft.storage import RaftStorage, RecoveredRaftLog, needs_sync
from ebla.journal.recovery import JournalLimits
from ebla.journal.segmented_log import DEFAULT_JOURNAL_LIMITS
from ebla.model.errors import Corruption, DiskFull, EblaError, Refused, Unavailable
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.raft.core import RaftCore
from ebla.raft.effects import ApplyEntries, Effects, LogWrite, RaftStatus
from ebla.raft.events import (
    ApplyMembership,
    Compact,
    PeerUnreachable,
    RaftEvent,
    SnapshotSent,
    SnapshotTaken,
    Tick,
    WriteCompleted,
)
from ebla.raft.held_appends import APPEND_HOLD_MS, HeldAppends
from ebla.raft.membership import MembershipChange, change_of
from ebla.raft.messages import (
    NO_PEER,
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    Message,
    PeerId,
    ReadIndexRequest,
    SnapshotMeta,
)
from ebla.raft.options import RaftOptions
from ebla.raft.proposal_batches import Proposal, batch_proposals
from ebla.raft.roles import Leader
from ebla.raft.state import RecoveredState
from ebla.raft.waiting_peers import WaitingPeers
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer

APPLY_BYTES_MAX = 1024 * 1024
"""Applied in one turn. A peer that catches up has much to apply, and the loop has others to serve."""
WRITE_BYTES_MAX = 16 * 1024 * 1024
"""Of waiting writes, made durable with one sync."""

Content = TypeVar("Content")


class StateMachine(Protocol[Content]):
    """What stands on the log. Called on the loop, in log order, and never fails: what it cannot do it answers."""

    def apply(self, entry: Entry) -> None: ...

    def apply_membership(self, entry: Entry, change: MembershipChange) -> bool:
        """Whether the change shall take effect; the same on every peer."""
        ...

    def freeze(self) -> Iterator[bytes]: ...

    def receiver(self) -> SnapshotSink[Content]: ...

    def install(self, content: Content) -> None: ...


class RaftTransport(Protocol):
    """The way to the other peers."""

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        """False: dropped."""
        ...

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        """Returns once the peer has all of it; raises `EblaError` otherwise. Bounded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    folder: str
    options: RaftOptions
    report: EventReporter
    snapshot_entries_max: int = 10_000
    snapshot_bytes_max: int = 64 * 1024 * 1024
    """A snapshot is taken once the log behind the last one has this many entries or bytes."""
    kept_entries: int = 1_000
    """Left in memory behind a snapshot, so that a peer that lags a little needs no snapshot."""
    disk_full_retry_ms: int = 500
    read_wait_max_ms: int = 10_000
    before_first_snapshot: Callable[[int], Awaitable[None]] | None = None
    """Awaited with the log's id, after the first snapshot is durable here and before the core hears of it: from then on
    this peer may acknowledge and vote, so whoever must not forget that writes it down here."""
    log_limits: JournalLimits = DEFAULT_JOURNAL_LIMITS


class RaftDriver(Generic[Content]):
    """`open`, then `run` until cancelled. An error that leaves `run` means that the process must end."""

    def __init__(
        self, environment: Environment, setup: RaftConfig, machine: StateMachine[Content], wire: RaftTransport
    ) -> None:
        self._clock = environment.clock
        self._rng = environment.rng
        self._disk = environment.disk
        self._setup = setup
        self._machine = machine
        self._wire = wire
        self._inbox: list[RaftEvent] = []
        self._proposals: list[Proposal] = []
        self._reads = ReadIndexRounds(setup.options.peer, environment.rng, setup.read_wait_max_ms)
        self._writes: deque[tuple[LogWrite, int]] = deque()
        self._is_writing = False
        self._turn_due = False
        self._in_turn = False
        self._proposed_together = 0
        """In the last turn that proposed anything."""
        self._broken: asyncio.Future[None] | None = None
        """Pending while `run` runs; what breaks a turn ends it."""
        self._idle_writer: asyncio.Future[tuple[list[LogWrite], EagerCoroutine]] | None = None
        """Made by `run`; given what has begun and takes time."""
        self._applies: deque[ApplyEntries] = deque()
        """Handed out by the core, and to be applied before any other."""
        self._waiting = WaitingPeers()
        is_told = lambda index: self._core.has_sent_commit(index)  # noqa: E731, PLW0108  # the core comes with `open`
        self._notices = CommitNotices(self.post, self._waiting, is_told)
        self._held = HeldAppends(setup.options.peer)
        ways = SendActions(self._send_together, self._begin_snapshot, self._hold_ends_soon)
        self._sending = AppendSender(self._held, self._waiting, ways)
        self._incoming: SnapshotReceiver[Content]
        self._received: dict[SnapshotMeta, Content] = {}
        self._bytes_since_snapshot = 0
        self._snapshot_runs = False
        self._log: RaftStorage
        self._core: RaftCore
        self._tasks: asyncio.TaskGroup | None = None
        self._standing_changed = asyncio.Event()

    # ---- life

    async def open(self) -> None:
        """Reads the log and the snapshot it continues. Raises `Corruption` with what to do."""
        self._log, found = await self._open_log()
        self._incoming = SnapshotReceiver(self._disk, self._clock, self._desk())
        if found.snapshot.index:
            receiver = self._machine.receiver()
            async with aclosing(self._log.read_snapshot(found.snapshot)) as chunks:
                async for chunk in chunks:
                    receiver.add(chunk)
                    await asyncio.sleep(0)
            self._machine.install(receiver.finish())
        past = RecoveredState(found.hard_state, found.snapshot, found.entries)
        # Told when `CommitNotices` asks for it.
        options = replace(self._setup.options, broadcast_commits=False)
        self._core = RaftCore(options, past, self._rng, self._clock.boot_ms())

    async def begin(self, meta: SnapshotMeta, content: Iterator[bytes], first: LogWrite) -> int:
        """Starts a group: its first state, durable. Only before `open`. Where it was begun already, nothing changes.
        Gives the id of the log."""
        log, found = await self._open_log()
        if found.snapshot.index == 0:
            await log.store_snapshot(meta, content)
            await log.persist([first])
        await log.close()
        return log.log_id

    async def _open_log(self) -> tuple[RaftStorage, RecoveredRaftLog]:
        return await RaftStorage.open(self._disk, self._rng, self._setup.folder, self._setup.log_limits)

    async def run(self) -> None:
        self._broken = asyncio.get_running_loop().create_future()
        self._idle_writer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._write())
                self._tasks.create_task(self._tick())
                self._wake()
                await self._broken
        finally:
            self._broken = None

    async def close(self) -> None:
        """After `run` has ended."""
        await self._log.close()

    # ---- what the layer above asks

    @property
    def core(self) -> RaftCore:
        """After `open`."""
        return self._core

    @property
    def log(self) -> RaftStorage:
        """After `open`."""
        return self._log

    @property
    def log_id(self) -> int:
        """Of the log on disk: one that was lost and begun anew has another."""
        return self._log.log_id

    @property
    def is_leader(self) -> bool:
        return isinstance(self.core.role, Leader)

    async def wait_status_changed(self) -> None:
        """Returns at the next change of role or leader. The caller sets the bound."""
        await self._standing_changed.wait()

    def post(self, event: RaftEvent) -> None:
        self._inbox.append(event)
        self._wake()

    def post_all(self, events: Sequence[RaftEvent]) -> None:
        self._inbox.extend(events)
        self._wake_now()

    def propose(self, payload: bytes, kind: EntryKind, by: PeerId = NO_PEER) -> None:
        """Proposals of one turn become one event. The machine sees the entry if and when it is committed; whether it
        ever will is not told here, so whoever proposes must be ready to propose again. `by`: the peer that waits."""
        self._proposals.append((payload, kind))
        if by != NO_PEER:
            self._waiting.asked(by, self._clock.boot_ms())
        log = self._core.state.log
        if log.committed == log.last_index:
            self._wake_now()
        else:
            self._wake()

    async def read_index(self) -> int:
        """An index such that whoever has applied it sees every write that was answered before this call. Reads of one
        turn share one round. Raises `Unavailable`; the caller sets the bound and may ask again."""
        future = self._reads.add()
        self._wake()
        return await future

    async def receive_chunk(self, chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        """A piece of a snapshot that a leader sends. The core hears of it once it is whole and durable."""
        message = chunk.message
        if self._tasks is None:
            raise Unavailable("this peer does not run yet")
        if message.term < self._core.term:
            raise Refused(
                f"a leader of term {message.term} sends a snapshot, and this peer is in term {self._core.term}"
            )
        if chunk.number == 0:
            if not self._is_wanted(message):
                self.post(message)
                return SnapshotChunkAnswer(stored=True)
            self._setup.report("raft.snapshot_begins", {"index": message.snapshot.index, "sender": message.sender})
        return await self._incoming.take(chunk, self._tasks)

    # ---- turns

    def _wake(self) -> None:
        """What gathers until then shares a turn. A callback and not a task that waits: half the cost, for every message
        and every write."""
        if not self._turn_due and self._broken is not None:
            self._turn_due = True
            self._broken.get_loop().call_soon(self._turn_when_due)

    def _wake_now(self) -> None:
        """A step of the loop earlier, which for what is alone is a good part of its way. Not where proposals came in
        crowds lately: the first of the next crowd would have a sync of its own, and each answer a turn."""
        if self._turn_due or self._in_turn or self._proposed_together > 1:
            self._wake()
        else:
            self._guarded(self._turn)

    def _turn_when_due(self) -> None:
        self._turn_due = False
        self._guarded(self._turn)

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._broken is None or self._broken.done():
            return
        try:
            step()
        except Exception as error:  # handed to `run`, whose task group ends everything else
            self._broken.set_exception(error)

    def _turn(self) -> None:
        self._in_turn = True
        try:
            self._take_turn()
        finally:
            self._in_turn = False

    def _take_turn(self) -> None:
        core = self._core
        now_ms = self._clock.boot_ms()
        applied_bytes = 0
        if self._proposals:
            self._step_proposals(now_ms)
        if self._reads.gathered:
            self._step_readers(now_ms)
        while True:
            inbox, self._inbox = self._inbox, []
            for event in inbox:
                if type(event) is AppendResponse:
                    self._held.acknowledged(event, core.membership)
                elif type(event) is ReadIndexRequest:
                    self._waiting.asked(event.sender, now_ms)
                core.step(event, now_ms)
            while core.has_effects:
                effects = core.take()
                self._carry_out(effects, now_ms)
                if effects.apply is None or self._applies:
                    break  # nothing was stepped in meanwhile
                applied_bytes += effects.apply.answer.payload_bytes
                if applied_bytes >= APPLY_BYTES_MAX:
                    self._begin_writing()
                    self._wake()
                    return
            self._begin_writing()
            if not self._inbox:
                return

    async def _write(self) -> None:
        while True:
            assert self._idle_writer is not None
            writes, begun = await self._idle_writer
            await begun.finish()
            self._idle_writer = asyncio.get_running_loop().create_future()
            self._is_writing = False
            self._answer(writes)
            self._turn()

    def _begin_writing(self) -> None:
        """All that waits, with one sync. Where that is short it is done on return, and its answers are on their way."""
        if self._is_writing or not self._writes:
            return
        assert self._idle_writer is not None, "turns are taken while it runs"
        writes = self._take_writes()
        if self._may_keep_loop() and self._log.persist_now(writes):
            self._answer(writes)
            return
        self._is_writing = True
        begun = EagerCoroutine(self._persist(writes))
        if begun.is_done:
            self._is_writing = False
            self._answer(writes)
        else:
            self._idle_writer.set_result((writes, begun))

    def _may_keep_loop(self) -> bool:
        """With a sync, while there is nothing else to do. Where a leader's appends go to everybody, two others may be
        done before its own disk is, and a loop that is away would not hear of them."""
        is_on_the_way = not self.is_leader or self._held.has_ranking
        return is_on_the_way and not (self._proposals or self._inbox)

    def _answer(self, writes: Sequence[LogWrite]) -> None:
        """They and all before them are durable."""
        own = self._core.peer
        outgoing: list[Message] = []
        for write in writes:
            if write.snapshot is not None:
                self._apply_all()
                self._install(write.snapshot)
            for answer in write.answers:
                if isinstance(answer, WriteCompleted) or answer.to == own:
                    self._inbox.append(answer)
                else:
                    outgoing.append(answer)
        if outgoing:
            self._send(outgoing)

    def _take_writes(self) -> list[LogWrite]:
        writes: list[LogWrite] = []
        size = 0
        while self._writes and size < WRITE_BYTES_MAX:
            write, write_bytes = self._writes.popleft()
            writes.append(write)
            size += write_bytes
        return writes

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._setup.options.tick_ms / 1000)
            self.post(Tick())
            self._reads.drop_old()
            self._incoming.drop_idle()

    # ---- carrying out

    def _carry_out(self, effects: Effects, now_ms: int) -> None:
        if effects.status is not None:
            self._stand(effects.status)
        # The messages first: the peers' way is the longer one.
        if effects.messages:
            self._send(effects.messages)
        write, is_leader = effects.write, self.is_leader
        # Nobody waits for a leader's hint, and somebody does for what it applies.
        is_hint = is_leader and write is not None and not needs_sync(write)
        if write is not None and not is_hint:
            self._take_up(write)
            if effects.apply is not None and write.snapshot is None and is_leader:
                self._begin_writing()  # the disk is at work while it applies
        if effects.apply is not None:
            if self._applies or (self._writes and not is_leader):
                self._apply_soon(effects.apply)
            else:
                self._apply(effects.apply, now_ms)
        if write is not None and is_leader:
            if is_hint:
                self._take_up(write)
            if write.hard_state is not None:
                self._notices.committed(write.hard_state.commit, now_ms)
        for read in effects.reads:
            self._reads.answer(read)

    def _take_up(self, write: LogWrite) -> None:
        # Nothing that must reach the disk, and nothing before it on its way there: it is as durable as it will be.
        is_free = not self._is_writing and not self._writes
        if is_free and not needs_sync(write) and self._log.record_commit_hint(write.hard_state):
            self._answer((write,))
            return
        self._writes.append((write, self._core.state.log.size_of(write.entries)))

    def _stand(self, status: RaftStatus) -> None:
        self._setup.report(
            "raft.standing",
            {"role": status.role.__name__.lower(), "leader": status.leader, "term": self._core.term},
        )
        # Reads that a former leader was asked for may never be answered.
        self._reads.fail_all("the leader changed")
        self._held.forget()
        changed, self._standing_changed = self._standing_changed, asyncio.Event()
        changed.set()

    def _apply_soon(self, apply: ApplyEntries) -> None:
        """A follower first writes and answers what its leader waits for; that something older may be applied nobody
        here waits for. Two steps of the loop later: by then a short write is done and its answer has left, a long one
        is on its way."""
        self._applies.append(apply)
        if len(self._applies) == 1:
            assert self._broken is not None, "turns are taken while it runs"
            loop = self._broken.get_loop()
            loop.call_soon(loop.call_soon, self._guarded, self._apply_due)

    def _apply_due(self) -> None:
        self._apply_all()
        self._turn()

    def _apply_all(self) -> None:
        while self._applies:
            self._apply(self._applies.popleft(), self._clock.boot_ms())

    def _apply(self, apply: ApplyEntries, now_ms: int) -> None:
        core = self._core
        for entry in apply.entries:
            if entry.kind is EntryKind.COMMAND:
                self._machine.apply(entry)
            else:
                change = change_of(entry)
                if self._machine.apply_membership(entry, change):
                    self._held.reset_ranking()
                    core.step(ApplyMembership(entry.index, change), now_ms)
        core.step(apply.answer, now_ms)
        self._bytes_since_snapshot += apply.answer.payload_bytes
        self._consider_snapshot()

    def _send(self, messages: Sequence[Message]) -> None:
        self._sending.send(messages, self._core, self._clock.boot_ms())

    def _begin_snapshot(self, message: InstallSnapshot) -> None:
        assert self._tasks is not None
        self._tasks.create_task(self._send_snapshot(message))

    def _hold_ends_soon(self) -> None:
        end = partial(self._sending.release_all, self._core)
        asyncio.get_running_loop().call_later(APPEND_HOLD_MS / 1000, self._guarded, end)

    def _send_together(self, peer: PeerId, messages: Sequence[Message]) -> None:
        if not self._wire.send(peer, messages) and any(type(one) is Append for one in messages):
            self.post(PeerUnreachable(peer))

    def _step_proposals(self, now_ms: int) -> None:
        proposals, self._proposals = self._proposals, []
        self._proposed_together = len(proposals)
        for batch in batch_proposals(proposals, self._setup.options.message_bytes_max):
            refusal = self._core.step(batch, now_ms)
            if refusal is not None:
                self._setup.report("raft.proposal_refused", {"count": len(batch.payloads), "cause": refusal.value})

    def _step_readers(self, now_ms: int) -> None:
        question, readers = self._reads.next_round()
        refusal = self._core.step(question, now_ms)
        if refusal is None:
            self._reads.asked(question, readers)
        else:
            fail_readers(readers, refusal.value)

    # ---- disk and snapshots

    async def _persist(self, writes: list[LogWrite]) -> None:
        """A full disk changes nothing and is waited out: the peer stays a member that acknowledges nothing new."""
        told = False
        while True:
            try:
                await self._log.persist(writes)
                return
            except DiskFull as error:
                if not told:
                    self._setup.report("raft.disk_full", {"cause": error.message})
                    told = True
                await asyncio.sleep(self._setup.disk_full_retry_ms / 1000)

    def _consider_snapshot(self) -> None:
        """Right after entries were applied: core and machine are at the same index."""
        setup, log = self._setup, self._core.state.log
        entries = log.applied - log.snapshot.index
        due = entries >= setup.snapshot_entries_max or self._bytes_since_snapshot >= setup.snapshot_bytes_max
        if not due or self._snapshot_runs:
            return
        term = log.term_at(log.applied)
        assert term is not None, "what was applied last is in the log"
        meta = SnapshotMeta(log.applied, term, self._core.membership)
        self._snapshot_runs = True
        self._bytes_since_snapshot = 0
        assert self._tasks is not None
        self._tasks.create_task(self._take_snapshot(meta, self._machine.freeze()))

    async def _take_snapshot(self, meta: SnapshotMeta, content: Iterator[bytes]) -> None:
        try:
            await self._log.store_snapshot(meta, content)
            await self._log.adopt_snapshot(meta)
        except (DiskFull, FileNotFoundError) as error:
            # The log is whole without it; the next applied entry tries again. A file that is gone was swept because a
            # leader's newer snapshot took its place meanwhile.
            self._setup.report("raft.snapshot_failed", {"index": meta.index, "cause": str(error)})
        else:
            self._setup.report("raft.snapshot_taken", {"index": meta.index})
            self.post(SnapshotTaken(meta))
            self.post(Compact(max(meta.index - self._setup.kept_entries, 0)))
        finally:
            self._snapshot_runs = False

    async def _send_snapshot(self, message: InstallSnapshot) -> None:
        delivered = False
        try:
            async with aclosing(self._log.read_snapshot(message.snapshot)) as chunks:
                await self._wire.send_snapshot(message, chunks)
            delivered = True
        except (FileNotFoundError, EblaError) as error:
            # A newer snapshot may have taken its place meanwhile; the core then sends that one.
            if isinstance(error, Corruption):
                raise
            self._setup.report("raft.snapshot_not_delivered", {"to": message.to, "cause": str(error)})
        self.post(SnapshotSent(message.to, delivered))

    def _desk(self) -> SnapshotActions[Content]:
        return SnapshotActions(
            new_receiver=self._machine.receiver,
            new_file=self._log.begin_snapshot,
            is_wanted=self._is_wanted,
            is_stored=self._is_stored,
            is_not_needed=self.post,
        )

    def _is_wanted(self, message: InstallSnapshot) -> bool:
        """Otherwise the core takes nothing from it, and its answer tells the leader how far we are."""
        return message.snapshot.index > self._core.commit_index

    async def _is_stored(self, message: InstallSnapshot, content: Content) -> None:
        meta = message.snapshot
        self._setup.report("raft.snapshot_received", {"index": meta.index})
        before = self._setup.before_first_snapshot
        if before is not None and self._core.state.log.snapshot.index == 0:
            await before(self.log_id)
        # Whichever the core takes is there, and it never takes an older one than it has.
        held = self._core.state.log.snapshot.index
        self._received = {other: kept for other, kept in self._received.items() if other.index > held}
        self._received[meta] = content
        self.post(message)

    def _install(self, meta: SnapshotMeta) -> None:
        assert not self._applies, "entries handed out before a snapshot are applied before it"
        content = self._received[meta]
        self._received = {other: kept for other, kept in self._received.items() if other.index > meta.index}
        self._machine.install(content)
        self._bytes_since_snapshot = 0

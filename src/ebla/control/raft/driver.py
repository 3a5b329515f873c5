"""One Raft peer at work: feeds events to the core and carries out its effects on disk and network.

It decides nothing: the core decides what happens, and `raft/driver_policy.py` when. The driver keeps the five rules of
`raft/effects.py`. Events gather until the next turn; a turn steps them into the core and carries out its effects. All
queued writes become durable with one sync, which begins in the turn and ends in a task if it takes time; events gather
meanwhile. A write's answers leave only after its sync. Appends leave at once, so the leader's disk and its followers
work in parallel.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Generic

from ebla.aio.eager import Suspended, run_eagerly
from ebla.control.raft.config import Content, RaftConfig, RaftTransport, StateMachine
from ebla.control.raft.read_index import ReadIndexRounds
from ebla.control.raft.snapshots import RaftSnapshots
from ebla.control.raft.storage import RaftStorage
from ebla.group0.start_record import MustNotRun
from ebla.model.advice import replace_node_advice
from ebla.model.errors import DiskFull, Unavailable
from ebla.ports.environment import Environment
from ebla.raft.core import RaftCore
from ebla.raft.driver_policy import EFFECT_ORDER, DriverPolicy, PeerBatch, Step, Timer
from ebla.raft.effects import ApplyEntries, Effects, LogWrite, RaftStatus
from ebla.raft.events import ApplyMembership, PeerUnreachable, RaftEvent, Tick, WriteCompleted
from ebla.raft.membership import change_of
from ebla.raft.messages import (
    NO_PEER,
    Append,
    AppendResponse,
    EntryKind,
    InstallSnapshot,
    Message,
    PeerId,
    ReadIndexRequest,
    SnapshotMeta,
)
from ebla.raft.roles import Leader
from ebla.raft.state import Contradiction, RecoveredState, StepRefusal
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer

APPLY_BYTES_MAX = 1024 * 1024
"""Applied in one turn. A peer that catches up has much to apply, and the loop has others to serve."""
WRITE_BYTES_MAX = 16 * 1024 * 1024
"""Of queued writes, made durable with one sync."""
# Looked up once: an enum member is a slow attribute in Python 3.11, and these are compared in every turn.
_APPLY, _SYNC, _WRITE = Step.APPLY, Step.SYNC, Step.WRITE


class RaftDriver(Generic[Content]):
    """`open`, then `run` until cancelled. An error that leaves `run` means that the process must end."""

    def __init__(
        self, environment: Environment, config: RaftConfig, machine: StateMachine[Content], transport: RaftTransport
    ) -> None:
        self._environment = environment
        self._clock = environment.clock
        self._config = config
        self._machine = machine
        self._transport = transport
        self._policy = DriverPolicy(config.options.peer)
        self._inbox: list[RaftEvent] = []
        self._proposals: list[tuple[bytes, EntryKind]] = []
        self._reads = ReadIndexRounds(config.options.peer, environment.rng, config.read_wait_max_ms)
        self._writes: deque[tuple[LogWrite, int]] = deque()
        """With their sizes."""
        self._is_writing = False
        self._applies: deque[ApplyEntries] = deque()
        """Deferred; they must be applied before any later ones."""
        self._is_turn_scheduled = False
        self._is_in_turn = False
        self._broken: asyncio.Future[None] | None = None
        """Pending while `run` runs; an error in a turn ends it."""
        self._tasks: asyncio.TaskGroup | None = None
        self._status_changed = asyncio.Event()
        # Set by `open`.
        self.log: RaftStorage
        self.core: RaftCore
        self._snapshots: RaftSnapshots[Content]

    # ---- life

    async def open(self) -> None:
        """Reads the log and the snapshot it continues. Raises `Corruption` with advice."""
        self.log, recovered = await self._open_log()
        if recovered.snapshot.index:
            receiver = self._machine.receiver()
            async with aclosing(self.log.read_snapshot(recovered.snapshot)) as chunks:
                async for chunk in chunks:
                    receiver.add(chunk)
                    await asyncio.sleep(0)
            self._machine.install(receiver.finish())
        # The policy decides when the peers learn of a commit.
        options = replace(self._config.options, broadcast_commits=False)
        self.core = RaftCore(options, recovered, self._environment.rng, self._clock.boot_ms())
        self._snapshots = RaftSnapshots(
            self._environment,
            self._config,
            machine=self._machine,
            transport=self._transport,
            storage=self.log,
            core=self.core,
            post=self.post,
        )

    async def begin(self, meta: SnapshotMeta, content: Iterator[bytes], first: LogWrite) -> int:
        """Creates a group: makes its first state durable and returns the id of the log. Only before `open`. If the
        group exists already, nothing changes."""
        log, recovered = await self._open_log()
        if recovered.snapshot.index == 0:
            await log.store_snapshot(meta, content)
            await log.persist([first])
        await log.close()
        return log.log_id

    async def _open_log(self) -> tuple[RaftStorage, RecoveredState]:
        environment, config = self._environment, self._config
        return await RaftStorage.open(environment.disk, environment.rng, config.folder, config.log_segment_bytes)

    async def run(self) -> None:
        self._broken = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._tick())
                self._schedule_turn()
                await self._broken
        finally:
            self._broken = None

    async def close(self) -> None:
        """After `run` has ended."""
        await self.log.close()

    # ---- for the layer above

    @property
    def is_leader(self) -> bool:
        return isinstance(self.core.state.role, Leader)

    async def wait_status_changed(self) -> None:
        """Returns at the next change of role or leader. The caller sets the deadline."""
        await self._status_changed.wait()

    def post(self, event: RaftEvent) -> None:
        self._inbox.append(event)
        self._schedule_turn()

    def post_all(self, events: Sequence[RaftEvent]) -> None:
        self._inbox.extend(events)
        if self._policy.may_turn_now():
            self._turn_now()
        else:
            self._schedule_turn()

    def propose(self, payload: bytes, kind: EntryKind, by: PeerId = NO_PEER) -> None:
        """Proposals of one turn become one event. The state machine sees the entry when and if it is committed. Nothing
        here says whether it ever will be, so the caller must be ready to propose again. `by`: the peer that waits."""
        self._proposals.append((payload, kind))
        if by != NO_PEER:
            self._policy.peer_waits(by, self._clock.boot_ms())
        log = self.core.state.log
        if self._policy.may_turn_now(is_pipelined=log.committed != log.last_index):
            self._turn_now()
        else:
            self._schedule_turn()

    async def read_index(self) -> int:
        """An index such that a peer that has applied it sees every write that was answered before this call. Reads of
        one turn share one round. Raises `Unavailable`; the caller sets the deadline and may call again."""
        future = self._reads.add()
        self._schedule_turn()
        return await future

    async def receive_chunk(self, chunk: SnapshotChunk) -> SnapshotChunkAnswer:
        """A chunk of a snapshot that a leader sends. The core learns of the snapshot once it is complete and
        durable."""
        if self._tasks is None:
            raise Unavailable("this peer does not run yet")
        return await self._snapshots.receive(chunk, self._tasks)

    # ---- turns

    def _schedule_turn(self) -> None:
        """A callback and not a task that waits: half the cost, for every message and every write."""
        if not self._is_turn_scheduled and self._broken is not None:
            self._is_turn_scheduled = True
            self._broken.get_loop().call_soon(self._scheduled_turn)

    def _turn_now(self) -> None:
        if self._is_turn_scheduled or self._is_in_turn:
            self._schedule_turn()
        else:
            self._guarded(self._turn)

    def _scheduled_turn(self) -> None:
        self._is_turn_scheduled = False
        self._guarded(self._turn)

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._broken is None or self._broken.done():
            return
        try:
            step()
        except Exception as error:  # handed to `run`, whose task group ends everything else
            self._broken.set_exception(error)

    def _turn(self) -> None:
        self._is_in_turn = True
        try:
            self._take_turn()
        finally:
            self._is_in_turn = False

    def _take_turn(self) -> None:
        core = self.core
        now_ms = self._clock.boot_ms()
        applied_bytes = 0
        if self._proposals:
            self._step_proposals(now_ms)
        if self._reads.gathered:
            self._reads.start_round(core, now_ms)
        while True:
            inbox, self._inbox = self._inbox, []
            for event in inbox:
                if type(event) is AppendResponse:
                    self._policy.acknowledged(event, core.membership)
                elif type(event) is ReadIndexRequest:
                    self._policy.peer_waits(event.sender, now_ms)
                outcome = core.step(event, now_ms)
                if type(outcome) is Contradiction:
                    text = outcome.text(self._transport.name_of(outcome.leader))
                    raise MustNotRun(f"{text}. Nothing was changed", advice=replace_node_advice())
            while core.has_effects:
                effects = core.take()
                self._carry_out(effects, now_ms)
                if effects.apply is None or self._applies:
                    break  # nothing was stepped in meanwhile
                applied_bytes += effects.apply.answer.payload_bytes
                if applied_bytes >= APPLY_BYTES_MAX:
                    self._start_writing()
                    self._schedule_turn()
                    return
            self._start_writing()
            if not self._inbox:
                return

    def _step_proposals(self, now_ms: int) -> None:
        proposals, self._proposals = self._proposals, []
        for batch in self._policy.batch_proposals(proposals, self._config.options.message_bytes_max):
            refusal = self.core.step(batch, now_ms)
            if isinstance(refusal, StepRefusal):
                self._config.report("raft.proposal_refused", {"count": len(batch.payloads), "cause": refusal.value})

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.options.tick_ms / 1000)
            self.post(Tick())
            self._reads.drop_old()
            self._snapshots.drop_idle()

    # ---- effects

    def _carry_out(self, effects: Effects, now_ms: int) -> None:
        if effects.status is not None:
            self._change_status(effects.status)
        if effects.messages:
            self._send(effects.messages)
        write, apply, is_leader = effects.write, effects.apply, self.is_leader
        for step in EFFECT_ORDER[is_leader, write is not None and write.needs_disk, apply is not None]:
            if step is _APPLY:
                if apply is not None:
                    self._apply_or_defer(apply, now_ms, is_leader=is_leader)
            elif step is _SYNC:
                self._start_writing()
            elif write is not None:
                if step is _WRITE:
                    self._write(write)
                elif write.hard_state is not None:
                    self._inbox.extend(self._policy.committed(write.hard_state.commit, now_ms))
                    if self._policy.timers:
                        self._start_timers()
        for read in effects.reads:
            self._reads.answer(read)

    def _change_status(self, status: RaftStatus) -> None:
        self._config.report(
            "raft.status",
            {"role": status.role.__name__.lower(), "leader": status.leader, "term": self.core.term},
        )
        # A former leader may never answer the reads it was sent.
        self._reads.fail_all("the leader changed")
        self._policy.status_changed()
        changed, self._status_changed = self._status_changed, asyncio.Event()
        changed.set()

    def _send(self, messages: Sequence[Message]) -> None:
        """Rule 1. A snapshot is sent by a task of its own."""
        snapshots = [message for message in messages if type(message) is InstallSnapshot]
        if snapshots:
            assert self._tasks is not None
            for snapshot in snapshots:
                self._tasks.create_task(self._snapshots.send(snapshot))
            messages = [message for message in messages if type(message) is not InstallSnapshot]
        self._send_batches(self._policy.to_send(messages, self.core.last_index, self._clock.boot_ms()))
        if self._policy.timers:
            self._start_timers()

    def _send_batches(self, batches: Sequence[PeerBatch]) -> None:
        for peer, messages in batches:
            if not self._transport.send(peer, messages) and any(type(one) is Append for one in messages):
                self.post(PeerUnreachable(peer))

    def _start_timers(self) -> None:
        loop = asyncio.get_running_loop()
        for timer in self._policy.timers:
            expire = self._send_held if timer is Timer.HELD_APPENDS else self._send_notice
            loop.call_later(timer.value / 1000, self._guarded, expire)
        self._policy.timers.clear()

    def _send_held(self) -> None:
        self._send_batches(self._policy.held_due(self.core.commit_index))

    def _send_notice(self) -> None:
        notice = self._policy.notice_due(self.core.has_sent_commit)
        if notice is not None:
            self.post(notice)
        self._start_timers()

    # ---- effects on the state machine

    def _apply_or_defer(self, apply: ApplyEntries, now_ms: int, *, is_leader: bool) -> None:
        """Rule 3. Deferred entries are applied two steps of the loop later: by then a short write is done and its
        answer has left, and a long one is on its way."""
        if not self._applies and not self._policy.defers_apply(
            is_leader=is_leader, has_queued_writes=bool(self._writes)
        ):
            self._apply(apply, now_ms)
            return
        self._applies.append(apply)
        if len(self._applies) == 1:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._guarded, self._apply_deferred)

    def _apply_deferred(self) -> None:
        self._apply_all()
        self._turn()

    def _apply_all(self) -> None:
        while self._applies:
            self._apply(self._applies.popleft(), self._clock.boot_ms())

    def _apply(self, apply: ApplyEntries, now_ms: int) -> None:
        core = self.core
        for entry in apply.entries:
            if entry.kind is EntryKind.COMMAND:
                self._machine.apply(entry)
            else:
                change = change_of(entry)
                if self._machine.apply_membership(entry, change):
                    self._policy.reset_ranking()
                    core.step(ApplyMembership(entry.index, change), now_ms)
        core.step(apply.answer, now_ms)
        assert self._tasks is not None
        self._snapshots.applied(apply.answer.payload_bytes, self._tasks)

    # ---- effects on the disk

    def _write(self, write: LogWrite) -> None:
        """Rule 2. A write that needs no disk is complete at once, unless others before it are on their way there."""
        is_free = not self._is_writing and not self._writes
        if is_free and not write.needs_disk and self.log.record_commit_hint(write.hard_state):
            self._complete((write,))
            return
        self._writes.append((write, self.core.state.log.size_of(write.entries)))

    def _start_writing(self) -> None:
        """All queued writes, with one sync. A short one is complete on return."""
        if self._is_writing or not self._writes:
            return
        writes: list[LogWrite] = []
        size = 0
        while self._writes and size < WRITE_BYTES_MAX:
            write, write_bytes = self._writes.popleft()
            writes.append(write)
            size += write_bytes
        is_idle = not (self._proposals or self._inbox)
        may_block = self._policy.may_block_for_sync(is_leader=self.is_leader, is_idle=is_idle)
        if may_block and self.log.persist_now(writes):
            self._complete(writes)
            return
        self._is_writing = True
        rest = run_eagerly(self._persist(writes))
        if type(rest) is Suspended:
            assert self._tasks is not None
            self._tasks.create_task(self._finish_writing(writes, rest))
        else:
            self._is_writing = False
            self._complete(writes)

    async def _finish_writing(self, writes: list[LogWrite], rest: Suspended[None]) -> None:
        await rest
        self._is_writing = False
        self._complete(writes)
        self._turn()

    async def _persist(self, writes: list[LogWrite]) -> None:
        """A full disk changes nothing, so wait and try again: the peer stays a member that acknowledges nothing new."""
        is_reported = False
        while True:
            try:
                await self.log.persist(writes)
                return
            except DiskFull as error:
                if not is_reported:
                    self._config.report("raft.disk_full", {"cause": error.message})
                    is_reported = True
                await asyncio.sleep(self._config.disk_full_retry_ms / 1000)

    def _complete(self, writes: Sequence[LogWrite]) -> None:
        """These writes and all before them are durable: rules 2 and 4."""
        own = self.core.peer
        outgoing: list[Message] = []
        for write in writes:
            if write.snapshot is not None:
                self._apply_all()
                self._snapshots.install(write.snapshot)
            for answer in write.answers:
                if isinstance(answer, WriteCompleted) or answer.to == own:
                    self._inbox.append(answer)
                else:
                    outgoing.append(answer)
        if outgoing:
            self._send(outgoing)

"""Sends a node's settings to its peers and merges theirs.

Own changes go at once to every peer that is up. What is lost on the way comes with a pull: each node pulls from a
random peer now and then. A message counts only if its sender is a member as far as this node knows (`SettingsCluster`).
"""

import asyncio
import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ebla.aio.retry import Backoff, retry
from ebla.aio.wakeup import Wakeup
from ebla.control.settings.cluster import SettingsCluster
from ebla.control.settings.durable_store import DurableSettings
from ebla.control.settings.reset import SettingsReset
from ebla.control.settings.settings_metrics import SettingsMetrics
from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, Overloaded, Unavailable
from ebla.model.identity import HistoryId, HostId
from ebla.ports.environment import Environment
from ebla.settings_store.entry import Entry, decode_entries, encode_entries, entry_bytes
from ebla.settings_store.node_store import Decision, ReceivedEntries, SettingsStore
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.settings_messages import (
    SettingsHeader,
    SettingsPullAnswer,
    SettingsPullRequest,
    SettingsPushRequest,
)
from ebla.wire.verbs import SETTINGS_PULL, SETTINGS_PUSH, EmptyAnswer

MESSAGE_BYTES_MAX = 256 * 1024
MERGE_BATCH_MAX = 50
MERGE_QUEUE_MAX = 2_000
PULL_EVERY_S_MIN, PULL_EVERY_S_MAX = 5, 60
PULL_MS = 10_000
PUSH_MS = 10_000
SYNC_MS = 30_000
SYNC_BACKOFF = Backoff(first_s=0.2, max_s=2.0)
START_PEERS_MAX = 5
CHECK_S = 1.0
IDLE_S = 3_600.0


@dataclass(slots=True, eq=False)
class _Received:
    """A message that waits to be merged."""

    header: SettingsHeader
    entries: Sequence[tuple[str, Entry]]
    merged: "asyncio.Future[None]"


@dataclass(slots=True, eq=False)
class _Outbox:
    """Changes for one peer. One batch is on its way; what changes meanwhile goes with the next one."""

    keys: dict[str, None] = field(default_factory=dict)
    waiters: "list[asyncio.Future[str]]" = field(default_factory=list)
    is_sending: bool = False


class SettingsReplication:
    def __init__(
        self,
        durable: DurableSettings,
        cluster: SettingsCluster,
        peers: Peers,
        reset: SettingsReset,
        environment: Environment,
    ) -> None:
        self._durable = durable
        self._cluster = cluster
        self._peers = peers
        self._reset = reset
        self._rng = environment.rng
        self._clock = environment.clock
        self._loop = asyncio.get_running_loop()
        self.metrics = SettingsMetrics()
        self._queue: deque[_Received] = deque()
        self._arrived = Wakeup()
        self._outboxes: dict[HostId, _Outbox] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._known: dict[HostId, None] = {}
        self._history: HistoryId | None = None
        self._may_push = True
        """False after this node's history changed, until it has what the members of the new one have."""
        self._must_sync = False
        self._has_started = asyncio.Event()
        self._sorted: tuple[int, list[str]] = (-1, [])

    def serve_on(self, server: Server) -> None:
        server.serve(SETTINGS_PUSH, self._receive_push)
        server.serve(SETTINGS_PULL, self._answer_pull)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._merge_queue())
            tasks.create_task(self._synchronise())
            tasks.create_task(self._pull_sometimes())

    # ---- own changes

    def push(self, keys: Iterable[str], hosts: Collection[HostId]) -> "dict[HostId, asyncio.Future[str]]":
        """Sends these keys. The result for each host is empty once it has merged them durably, or why not."""
        wanted = tuple(keys)
        if not wanted or self._tasks is None:
            return {}
        return {host: self._enqueue(host, wanted, self._tasks) for host in hosts}

    def _enqueue(self, host: HostId, keys: tuple[str, ...], tasks: asyncio.TaskGroup) -> "asyncio.Future[str]":
        outbox = self._outboxes.setdefault(host, _Outbox())
        outbox.keys |= dict.fromkeys(keys)
        sent: asyncio.Future[str] = self._loop.create_future()
        outbox.waiters.append(sent)
        if not outbox.is_sending:
            outbox.is_sending = True
            tasks.create_task(self._send_outbox(host, outbox))
        return sent

    async def _send_outbox(self, host: HostId, outbox: _Outbox) -> None:
        try:
            while outbox.keys:
                keys, outbox.keys = outbox.keys, {}
                waiters, outbox.waiters = outbox.waiters, []
                try:
                    await self._send(host, keys, PUSH_MS)
                    problem = ""
                except EblaError as error:
                    problem = error.message
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(problem)
        finally:
            outbox.is_sending = False

    async def _send(self, host: HostId, keys: Iterable[str], deadline_ms: int) -> None:
        """Messages up to a size; each has entries and watermark of the moment in which it is built."""
        expires_at = self._loop.time() + deadline_ms / 1000
        for part in self._parts(list(keys)):
            self._reset.require_done()
            if not self._may_push:
                raise Unavailable("this node takes the settings of its new history first")
            store = self._durable.store
            entries = [(key, store.entries[key]) for key in part if key in store.entries]
            if entries:
                header = self._cluster.header(store.header.watermark_us)
                request = SettingsPushRequest(header, encode_entries(entries))
                await self._peers.call(host, SETTINGS_PUSH, request, self._remaining_ms(expires_at))

    def _remaining_ms(self, expires_at: float) -> int:
        remaining_ms = int((expires_at - self._loop.time()) * 1000)
        if remaining_ms <= 0:
            raise DeadlineExceeded("not all settings were exchanged in time", advice="the rest comes with a pull")
        return remaining_ms

    def _parts(self, keys: list[str]) -> Iterator[list[str]]:
        part: list[str] = []
        size = 0
        for key in keys:
            entry = self._durable.store.entries.get(key)
            key_bytes = 0 if entry is None else entry_bytes(key, entry)
            if part and size + key_bytes > MESSAGE_BYTES_MAX:
                yield part
                part, size = [], 0
            part.append(key)
            size += key_bytes
        if part:
            yield part

    # ---- what peers send

    async def _receive_push(self, request: SettingsPushRequest, _call: IncomingCall) -> EmptyAnswer:
        await self.merge(request.header, decode_entries(request.entries))
        return EmptyAnswer()

    async def merge(self, header: SettingsHeader, entries: Sequence[tuple[str, Entry]]) -> None:
        """Returns once they are merged durably. Raises `Refused` if the sender is no member here."""
        self._reset.require_done()
        if len(self._queue) >= MERGE_QUEUE_MAX:
            self._drop_queue()
        received = _Received(header, entries, self._loop.create_future())
        self._queue.append(received)
        self._arrived.wake()
        await received.merged

    def _drop_queue(self) -> None:
        """A full sync costs less than what waits."""
        dropped = list(self._queue)
        self._queue.clear()
        self._must_sync = True
        for received in dropped:
            _fail(received.merged, Overloaded("too many settings wait to be merged", advice="they come with a pull"))

    async def _merge_queue(self) -> None:
        while True:
            if not self._queue:
                await self._arrived.wait(IDLE_S)
                continue
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MERGE_BATCH_MAX))]
            try:
                await self._merge_batch(batch)
            except EblaError as error:
                for received in batch:
                    _fail(received.merged, error)

    async def _merge_batch(self, batch: list[_Received]) -> None:
        decision = await self._durable.run(lambda store: self._decide(store, batch))
        if decision.older_copy:
            self._reset.start("its settings folder is an older copy: this node has made changes that it does not know")
            self._reset.require_done()
        for received in batch:
            if not received.merged.done():
                received.merged.set_result(None)
        self.count(decision)
        self.push(decision.pushed, self._cluster.up_hosts())

    def _decide(self, store: SettingsStore, batch: list[_Received]) -> Decision:
        """Senders are judged now, not when their messages arrived: one may have been removed since."""
        self._reset.require_done()
        accepted = []
        for received in batch:
            try:
                self._cluster.check_sender(received.header)
            except EblaError as refusal:
                self.metrics.refused.add()
                _fail(received.merged, refusal)
            else:
                accepted.append(ReceivedEntries(received.entries, received.header.watermark_us))
        return store.receive(accepted, self._clock.wall_us())

    def count(self, decision: Decision) -> None:
        self.metrics.conflicts.add(decision.conflicts)
        self.metrics.filtered.add(decision.filtered)

    async def drain(self) -> None:
        """Returns once every message that arrived before the call is merged."""
        waiting = [received.merged for received in self._queue]
        await self._durable.run(lambda _store: Decision())
        if waiting:
            await asyncio.wait(waiting)

    # ---- what this node answers

    def _answer_pull(self, request: SettingsPullRequest, _call: IncomingCall) -> SettingsPullAnswer:
        store = self._durable.store
        header = self._cluster.header(store.header.watermark_us)
        if self._reset.in_progress:
            return SettingsPullAnswer(header=header, entries=encode_entries(()), in_reset=True)
        keys = self._sorted_keys()
        start = bisect.bisect_right(keys, request.after) if request.after else 0
        page = next(self._parts(keys[start : start + MESSAGE_BYTES_MAX // 32]), [])
        is_last = start + len(page) >= len(keys)
        entries = encode_entries((key, store.entries[key]) for key in page)
        return SettingsPullAnswer(header=header, entries=entries, next_after="" if is_last else page[-1])

    def _sorted_keys(self) -> list[str]:
        serial, keys = self._sorted
        if serial != self._durable.serial:
            keys = sorted(self._durable.store.entries)
            self._sorted = (self._durable.serial, keys)
        return keys

    # ---- synchronisation

    async def pull(self, host: HostId, deadline_ms: int = PULL_MS) -> None:
        """Returns once this node has merged everything that the host has."""
        expires_at = self._loop.time() + deadline_ms / 1000
        after = ""
        while True:
            request = SettingsPullRequest(after)
            page = await self._peers.call(host, SETTINGS_PULL, request, self._remaining_ms(expires_at))
            if page.in_reset:
                raise Unavailable("its settings are being reset")
            await self.merge(page.header, decode_entries(page.entries))
            after = page.next_after
            if not after:
                return

    async def pull_from(self, hosts: Collection[HostId]) -> tuple[HostId, ...]:
        """Returns once this node has merged everything these hosts have, within 30 s: the hosts that are missing."""
        return await self._with_each(hosts, self.pull)

    async def push_to(self, hosts: Collection[HostId]) -> tuple[HostId, ...]:
        """Returns once these hosts have durably merged everything this node has, within 30 s: those that are
        missing."""
        return await self._with_each(hosts, self._push_all)

    async def _push_all(self, host: HostId, deadline_ms: int) -> None:
        await self._send(host, self._durable.store.entries, deadline_ms)

    async def _with_each(
        self, hosts: Collection[HostId], work: Callable[[HostId, int], Awaitable[None]]
    ) -> tuple[HostId, ...]:
        missing: list[HostId] = []

        async def attempt(host: HostId) -> None:
            try:
                # A peer that restarted has broken this node's connection to it. One whose merge queue overflowed has
                # dropped these settings. Both can take them at once.
                await retry(
                    lambda: work(host, SYNC_MS),
                    SYNC_BACKOFF,
                    timeout_s=SYNC_MS / 1000,
                    is_retryable=lambda error: isinstance(error, ConnectionLost | Overloaded),
                )
            except EblaError:
                missing.append(host)

        async with asyncio.TaskGroup() as tasks:
            for host in hosts:
                if host != self._cluster.host:
                    tasks.create_task(attempt(host))
        return tuple(sorted(missing))

    async def _pull_sometimes(self) -> None:
        await self._has_started.wait()
        while True:
            pause_s = PULL_EVERY_S_MIN + self._rng.random() * (PULL_EVERY_S_MAX - PULL_EVERY_S_MIN)
            await asyncio.sleep(pause_s)
            up = self._cluster.up_hosts()
            if up and not self._reset.in_progress:
                await self._attempt_pull(self._rng.choice(up))

    async def _attempt_pull(self, host: HostId) -> bool:
        try:
            await self.pull(host)
        except EblaError:
            return False
        return True

    def synchronise_soon(self) -> None:
        """With every member that is up."""
        self._must_sync = True

    async def _synchronise(self) -> None:
        """With some peer at the start, with all of them after a burst or a change of history, and with new members."""
        while True:
            if self._cluster.group0.is_running and not self._reset.in_progress:
                history = self._cluster.store.chain[-1].history
                if self._history not in (None, history):
                    self._may_push = False
                self._history = history
                up = self._cluster.up_hosts()
                if not self._may_push or self._must_sync:
                    self._must_sync = False
                    await self.pull_from(up)
                    self._may_push = True
                    await self.push_to(up)
                elif not self._has_started.is_set():
                    await self._synchronise_first(up)
                await self._greet_new_members(up)
            await asyncio.sleep(CHECK_S)

    async def _synchronise_first(self, up: Sequence[HostId]) -> None:
        others = [member.host for member in self._cluster.others()]
        if not others:
            self._has_started.set()
            return
        self._rng.shuffle(others)
        for host in others[:START_PEERS_MAX]:
            if await self._attempt_pull(host):
                self._known = dict.fromkeys(up)
                await self.push_to(up)
                self._has_started.set()
                return

    async def _greet_new_members(self, up: Sequence[HostId]) -> None:
        """Also with a member that was down when this node started."""
        new = [host for host in up if host not in self._known]
        missing = {*await self.pull_from(new), *await self.push_to(new)} if new else set()
        present = {member.host for member in self._cluster.others()}
        known = [host for host in (*self._known, *new) if host in present and host not in missing]
        self._known = dict.fromkeys(known)


def _fail(future: "asyncio.Future[None]", error: EblaError) -> None:
    if not future.done():
        future.set_exception(error)

"""A node's part in a purge: prepares, merges what the purger pushes, and erases once the round is effective."""

import asyncio
from collections.abc import Sequence

from ebla.aio.wakeup import Wakeup
from ebla.control.leadership.activity_tasks import ActivityTasks, RunningHandle
from ebla.control.settings.cluster import SettingsCluster
from ebla.control.settings.durable_store import DurableSettings
from ebla.control.settings.replication import MESSAGE_BYTES_MAX, SettingsReplication
from ebla.control.settings.reset import SettingsReset
from ebla.group0.keys import PURGE_KEY
from ebla.group0.store import is_on_chain
from ebla.model.errors import DiskFull, Refused, Stale, Unavailable
from ebla.model.transaction import Revision
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.settings_store.entry import Entry, decode_entries, encode_entries, entry_bytes
from ebla.settings_store.node_store import Decision, SettingsStore
from ebla.wire.server import Server
from ebla.wire.settings_messages import PreparePurgeAnswer, PreparePurgeRequest, PushTombstonesRequest
from ebla.wire.verbs import PREPARE_PURGE, PUSH_TOMBSTONES, EmptyAnswer

APPLY_WAIT_MS = 10_000
CHECK_S = 60.0
RETRY_S = 5.0


class PurgeAgent:
    def __init__(
        self,
        durable: DurableSettings,
        cluster: SettingsCluster,
        replication: SettingsReplication,
        reset: SettingsReset,
        clock: Clock,
        *,
        report: EventReporter,
    ) -> None:
        self._durable = durable
        self._cluster = cluster
        self._replication = replication
        self._reset = reset
        self._clock = clock
        self._report = report
        self._changed = Wakeup()
        self._collected: tuple[Revision, list[tuple[str, Entry]]] | None = None
        """The tombstones for the attempt that is being prepared, as they were at its first page."""

    def serve_on(self, server: Server, activities: ActivityTasks) -> None:
        activities.serve_order(server, PREPARE_PURGE, self.prepare)
        activities.serve_order(server, PUSH_TOMBSTONES, self.push)

    # ---- a round

    async def prepare(
        self, request: PreparePurgeRequest, handle: RunningHandle, deadline_ms: int
    ) -> PreparePurgeAnswer:
        """The sequence matters: see `docs/settings.md`."""

        def decide(store: SettingsStore) -> Decision:
            handle.check_effect()  # here, because the change may have waited for others
            return store.prepare(request.purged_us)

        self._reset.require_done()
        if request.start == 0:
            # First the removals up to R, so that no message of a removed host is merged after this.
            await self._wait_applied(request, min(APPLY_WAIT_MS, deadline_ms))
            self._check_attempt(request.purged_us, request.attempt)
            await self._durable.run(decide)
            await self._replication.drain()
            self._reset.require_done()
            self._collected = (request.attempt, self._durable.store.purgeable(request.purged_us))
        self._check_attempt(request.purged_us, request.attempt)
        tombstones = self._collected_for(request.attempt)
        page = first_part(tombstones[request.start :])
        return PreparePurgeAnswer(encode_entries(page), more=request.start + len(page) < len(tombstones))

    async def push(self, request: PushTombstonesRequest, handle: RunningHandle, deadline_ms: int) -> EmptyAnswer:  # noqa: ARG002  # as every order
        def decide(store: SettingsStore) -> Decision:
            handle.check_effect()
            return store.receive_tombstones(tombstones, request.purged_us, wall_us, is_last=request.is_last)

        self._reset.require_done()
        self._check_attempt(request.purged_us, request.attempt)
        self._collected_for(request.attempt)
        tombstones = decode_entries(request.tombstones)
        wall_us = self._clock.wall_us()
        decision = await self._durable.run(decide)
        if decision.older_copy:
            self._reset.start("its settings folder is an older copy: this node has made changes that it does not know")
            self._reset.require_done()
        self._replication.count(decision)
        self._replication.push(decision.pushed, self._cluster.up_hosts())
        return EmptyAnswer()

    def _collected_for(self, attempt: Revision) -> list[tuple[str, Entry]]:
        """Raises `Stale` unless this process has prepared the attempt. While the node was down, its settings folder may
        have been replaced by an older copy, which does not know T. A change that the node made since can qualify, and
        no other node has seen it."""
        prepared, tombstones = self._collected or (None, [])
        if prepared != attempt:
            raise Stale("this node has not prepared this round since it started", advice="start the round again")
        return tombstones

    async def _wait_applied(self, request: PreparePurgeRequest, deadline_ms: int) -> None:
        needed = max(request.members_revision.index, request.attempt.index)
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._cluster.group0.running.machine.wait_applied(needed)
        except TimeoutError:
            raise Unavailable(f"it has not applied group 0 up to index {needed} within {deadline_ms} ms") from None
        if not is_on_chain(self._cluster.store.chain, request.members_revision):
            raise Refused("it follows another history of group 0")

    def _check_attempt(self, purged_us: int, attempt: Revision) -> None:
        """A request that arrives late belongs to an attempt that is no longer the current one."""
        stored = self._cluster.purge_state()
        if stored.revision != attempt or stored.state.tentative_wall_us != purged_us:
            raise Stale("the purge round is not the current one any more", advice="start the round again")

    # ---- following group 0

    async def run(self) -> None:
        """Until cancelled: learns the timestamps, and erases what they allow. Also at every start: a crash may have
        come between the commit and the erasure."""
        await self._cluster.group0.opened.wait()
        self._cluster.watch_group0(PURGE_KEY, self._changed.wake)
        while True:
            try:
                await self._learn()
            except DiskFull as error:
                self._report("settings.erase_waits", {"cause": error.message})
                await asyncio.sleep(RETRY_S)
            else:
                await self._changed.wait(CHECK_S)

    def learn_soon(self) -> None:
        self._changed.wake()

    async def _learn(self) -> None:
        if self._reset.in_progress or not self._cluster.group0.is_running:
            return  # a reset ends with the timestamps of group 0, and then this runs again
        state = self._cluster.purge_state().state
        decision = await self._durable.run(lambda store: store.learn(state.tentative_wall_us, state.effective_wall_us))
        if decision.older_copy:
            self._reset.start("its settings folder is an older copy: tombstones that it lacks were purged")
        elif decision.update is not None and decision.update.erased:
            self._report("settings.erased", {"tombstones": len(decision.update.erased)})


def first_part(entries: Sequence[tuple[str, Entry]]) -> list[tuple[str, Entry]]:
    """As many as fit a message; at least one."""
    part: list[tuple[str, Entry]] = []
    size = 0
    for key, entry in entries:
        size += entry_bytes(key, entry)
        if part and size > MESSAGE_BYTES_MAX:
            break
        part.append((key, entry))
    return part

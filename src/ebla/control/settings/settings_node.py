"""The settings of a node: composes store, replication, reset and purge, and is what the rest of the node uses.

Other code reads `value(SETTING)` and follows it with `subscribe`. It changes entries by `write`, which is durable on
this node and on its way to the others when it returns; conditions are checked on this node only.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ebla.aio.wakeup import Wakeup
from ebla.control.fault_points import FaultPoint
from ebla.control.group0.join_state import JoinStage
from ebla.control.group0.node import Group0Node
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.settings.cluster import Liveness, SettingsCluster
from ebla.control.settings.durable_store import DurableSettings
from ebla.control.settings.purge_agent import PurgeAgent
from ebla.control.settings.purger import Purger, PurgerDeps
from ebla.control.settings.replication import SettingsReplication
from ebla.control.settings.reset import SettingsReset
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.settings_store.node_store import Decision, SettingsStore, Writer
from ebla.settings_store.registry import SETTINGS_PURGE, STATUS_NAME, Setting, node_key
from ebla.wire.peers import Peers
from ebla.wire.server import Server

T = TypeVar("T")

TOMBSTONES_WARN = 10_000
RECENT_CHANGES_MAX = 1_000
TIDY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsDeps:
    environment: Environment
    group0: Group0Node
    liveness: Liveness
    peers: Peers
    leadership: LeadershipNode
    report: EventReporter
    why_no_purge: Callable[[], str]
    """Why the cluster must not purge yet; empty: it may."""
    reach: Callable[[FaultPoint], Awaitable[None]]
    """Called at each fault point."""


class SentChange(NamedTuple):
    decision: Decision
    acknowledged: "Mapping[HostId, asyncio.Future[str]]"
    """By each peer that is up: empty once it has merged the change durably, or why it has not."""


class SettingsNode:
    def __init__(self, durable: DurableSettings, deps: SettingsDeps) -> None:
        environment = deps.environment
        self._clock, self._rng = environment.clock, environment.rng
        self._report = deps.report
        self._leadership = deps.leadership
        self.durable = durable
        self.cluster = SettingsCluster(deps.group0, deps.liveness, environment.clock)
        self.reset = SettingsReset(durable, self.cluster, deps.peers, environment, deps.report)
        self.replication = SettingsReplication(durable, self.cluster, deps.peers, self.reset, environment)
        self.agent = PurgeAgent(
            durable, self.cluster, self.replication, self.reset, environment.clock, report=deps.report
        )
        self.purger = Purger(
            PurgerDeps(
                durable=durable,
                cluster=self.cluster,
                leadership=deps.leadership,
                clock=environment.clock,
                metrics=self.replication.metrics,
                report=deps.report,
                setting=lambda: self.value(SETTINGS_PURGE),
                why_not_allowed=deps.why_no_purge,
                reach=deps.reach,
            )
        )
        self._subscribers: list[Callable[[], None]] = []
        self._recent: deque[tuple[int, tuple[str, ...]]] = deque(maxlen=RECENT_CHANGES_MAX)
        self.changed = Wakeup()
        self._tidy_now = Wakeup()
        durable.on_change = self._on_change
        self.reset.on_done = self._on_reset
        self._start_reset()

    def _start_reset(self) -> None:
        is_member = self.cluster.group0.join_state.mark.stage is JoinStage.MEMBER
        if not is_member:
            self.reset.start("the node joins", joins=True)
        elif self.durable.is_new:
            self.reset.start("it had no settings folder")
        self.replication.metrics.show(self.store)

    @property
    def store(self) -> SettingsStore:
        return self.durable.store

    def serve_on(self, server: Server) -> None:
        """The verbs between nodes."""
        self.replication.serve_on(server)
        self.agent.serve_on(server, self._leadership.activities)

    async def run(self) -> None:
        """Until cancelled. Raises if the disk failed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.durable.work())
            tasks.create_task(self._run_in_cluster())

    async def _run_in_cluster(self) -> None:
        await self.cluster.group0.opened.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reset.run())
            tasks.create_task(self.replication.run())
            tasks.create_task(self.agent.run())
            tasks.create_task(self.purger.run())
            tasks.create_task(self._tidy())

    # ---- for the rest of the node

    def value(self, setting: Setting[T]) -> T:
        """In effect on this node."""
        found = self.store.in_effect(setting.name).value
        return setting.default if found is None else setting.decode(found)

    def subscribe(self, setting: Setting[T], callback: Callable[[T], None]) -> None:
        """Calls back with each new value in effect, not with the present one."""
        last = self.value(setting)

        def check() -> None:
            nonlocal last
            now = self.value(setting)
            if now != last:
                last = now
                callback(now)

        self._subscribers.append(check)

    async def write(
        self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None] | None = None
    ) -> Decision:
        """Sets and deletes (None) keys, if every key in `expected` has that value on this node (None: not set): all of
        it or nothing. Durable on return, and being sent to the peers that are up."""
        sent = await self.change(lambda store, writer: store.write(changes, self._clock.wall_us(), writer, expected))
        return sent.decision

    async def change(self, decide: Callable[[SettingsStore, Writer], Decision], blocked_by: str = "") -> "SentChange":
        self.reset.require_done()
        writer = Writer(removed=self.cluster.removed(), leads=self.cluster.leads, blocked_by=blocked_by)
        decision = await self.durable.run(lambda store: self._decide(store, decide, writer))
        return SentChange(decision, self.replication.push(decision.pushed, self.cluster.up_hosts()))

    def _decide(
        self, store: SettingsStore, decide: Callable[[SettingsStore, Writer], Decision], writer: Writer
    ) -> Decision:
        self.reset.require_done()
        return decide(store, writer)

    async def push_to(self, hosts: Collection[HostId]) -> tuple[HostId, ...]:
        """Returns once these hosts have durably merged everything this node has, within 30 s: those that are
        missing."""
        return await self.replication.push_to(hosts)

    async def pull_from(self, hosts: Collection[HostId]) -> tuple[HostId, ...]:
        """Returns once this node has merged everything these hosts have, within 30 s: those that are missing."""
        return await self.replication.pull_from(hosts)

    def warnings(self) -> tuple[str, ...]:
        waiting = len(self.store.tombstones)
        found = [self.reset.warning] if self.reset.warning else []
        if waiting >= TOMBSTONES_WARN:
            found.append(f"{waiting:,} deleted settings wait to be purged; see: ebla settings purge-status")
        return tuple(found)

    # ---- changes

    def changes_since(self, serial: int) -> tuple[str, ...] | None:
        """The keys that changed after this serial; None if that is no longer known."""
        if serial > self.durable.serial or (self._recent and serial < self._recent[0][0] - 1):
            return None
        if serial < self.durable.serial and not self._recent:
            return None
        keys = [key for changed, keys in self._recent if changed > serial for key in keys]
        return tuple(dict.fromkeys(keys))

    def _on_change(self, keys: tuple[str, ...]) -> None:
        self._recent.append((self.durable.serial, keys))
        self.replication.metrics.show(self.store)
        for check in self._subscribers:
            check()
        self.changed.wake()

    def _on_reset(self) -> None:
        self.agent.learn_soon()
        self.replication.synchronise_soon()
        self._tidy_now.wake()

    # ---- own entries, and those of removed hosts

    async def _tidy(self) -> None:
        last_wait = ""
        while True:
            if not self.reset.in_progress:
                try:
                    await self.change(lambda store, _writer: store.publish_actor(self._clock.wall_us()))
                    await self._delete_removed()
                    last_wait = ""
                except EblaError as error:
                    if error.message != last_wait:  # once, not at every try
                        last_wait = error.message
                        self._report("settings.tidy_waits", {"cause": last_wait})
            await self._tidy_now.wait(TIDY_S)

    async def _delete_removed(self) -> None:
        """The leader deletes what removed hosts had set for themselves; only their status stays."""
        if not self.cluster.leads:
            return
        removed = self.cluster.removed()
        gone = {key: None for host in removed for key in self._live_keys_of(host)}
        if gone:
            await self.write(gone)

    def _live_keys_of(self, host: HostId) -> list[str]:
        prefix, status = node_key(host, ""), node_key(host, STATUS_NAME)
        return [key for key in self.store.entries if key.startswith(prefix) and key != status and self.store.get(key)]

    async def leave(self) -> None:
        """After this node was removed from its cluster."""
        await self.durable.replace(lambda store: store.left(self._rng.uuid(), self._clock.wall_us()))

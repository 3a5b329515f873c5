"""Resets a node's settings: when it joins, has lost its settings folder, or runs on an older copy of it.

Such a node may lack tombstones that it had acknowledged, and others may have erased theirs since. So it takes a whole
copy of a node that has seen all of them, under a new actor, before it takes part again.
"""

import asyncio
from collections.abc import Callable

import msgspec

from ebla.aio.wakeup import Wakeup
from ebla.control.settings.cluster import SettingsCluster
from ebla.control.settings.durable_store import DurableSettings
from ebla.group0.commands import Done
from ebla.group0.keys import PurgeState
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import HostId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.settings_store.entry import Entry, decode_entries
from ebla.wire.peers import Peers
from ebla.wire.settings_messages import SettingsPullRequest
from ebla.wire.verbs import SETTINGS_PULL

RETRY_S = 1.0
GROUP0_MS = 5_000
PAGE_MS = 5_000
IDLE_S = 3_600.0


class SettingsReset:
    def __init__(
        self,
        durable: DurableSettings,
        cluster: SettingsCluster,
        peers: Peers,
        environment: Environment,
        report: EventReporter,
    ) -> None:
        self._durable = durable
        self._cluster = cluster
        self._peers = peers
        self._rng = environment.rng
        self._clock = environment.clock
        self._report = report
        self._reason = ""
        self._joins = False
        self._last_wait = ""
        self._wakeup = Wakeup()
        self.warning = ""
        """For people: that the settings are being reset, or were since the start of this process."""
        self.on_done: Callable[[], None] = _nothing

    @property
    def in_progress(self) -> bool:
        return bool(self._reason) or self._durable.store.header.in_reset

    def require_done(self) -> None:
        if self.in_progress:
            raise Unavailable(
                f"the settings of this node are being reset: {self._reason or 'it was interrupted'}",
                advice="try again in a moment, or on another node",
            )

    def start(self, reason: str, *, joins: bool = False) -> None:
        """From now on the node writes, pushes and merges nothing; old values stay in effect."""
        if self._reason:
            return
        self._reason, self._joins = reason, joins
        self._report("settings.reset_begun", {"reason": reason})
        if not joins:
            self.warning = f"the settings of this node are being reset: {reason}"
        self._wakeup.wake()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self.in_progress:
                await self._wakeup.wait(IDLE_S)
                continue
            try:
                await self._reset()
            except EblaError as error:
                self._report_wait(str(error))
                await asyncio.sleep(RETRY_S)

    def _report_wait(self, cause: str) -> None:
        if cause != self._last_wait:  # once, not at every try
            self._last_wait = cause
            self._report("settings.reset_waits", {"cause": cause})

    async def _reset(self) -> None:
        joins = self._joins or self._durable.store.header.joins
        state = await self._end_round()
        actor = self._rng.uuid()
        await self._durable.run(
            lambda store: store.begin_reset(actor, state.tentative_wall_us, state.effective_wall_us, joins=joins)
        )
        copy = await self._find_copy(state.effective_wall_us)
        await self._durable.replace(lambda store: store.restored(copy, self._clock.wall_us()))
        self._report("settings.reset_done", {"copied": copy is not None, "entries": len(self._durable.store.entries)})
        if not joins:
            self.warning = f"the settings of this node were reset: {self._reason or 'the reset was interrupted before'}"
        self._reason, self._joins, self._last_wait = "", False, ""
        self.on_done()

    async def _end_round(self) -> PurgeState:
        """The purge's state. This node may have acknowledged the push of an unfinished round with the store that is
        gone, so that attempt must not become effective."""
        await self._cluster.read_barrier(GROUP0_MS)
        stored = self._cluster.purge_state()
        if not stored.is_unfinished or stored.state.purger is None:
            return stored.state
        cleared = msgspec.structs.replace(stored.state, purger=None)
        answer = await self._cluster.transact(stored.changed_to(cleared), GROUP0_MS)
        if not isinstance(answer, Done):
            raise Unavailable("the purge's state changed meanwhile")
        return cleared

    async def _find_copy(self, effective_us: int) -> dict[str, Entry] | None:
        """None: continue with its own entries. Without a purge they lack nothing, and if no node has a complete copy,
        waiting for one would never end."""
        others = [member.host for member in self._cluster.others()]
        if not effective_us or not others:
            return None
        self._rng.shuffle(others)
        problems = []
        for host in others:
            try:
                copy = await self._pull_copy(host, effective_us)
            except EblaError as error:
                problems.append(f"{self._cluster.address_of(host)}: {error.message}")
            else:
                if copy is not None:
                    return copy
        if problems:
            raise Unavailable(f"no node has a complete copy of the settings ({'; '.join(sorted(problems))})")
        return None

    async def _pull_copy(self, host: HostId, effective_us: int) -> dict[str, Entry] | None:
        """None: that node is in reset too."""
        copy: dict[str, Entry] = {}
        after = ""
        while True:
            page = await self._peers.call(host, SETTINGS_PULL, SettingsPullRequest(after), PAGE_MS)
            self._cluster.check_sender(page.header)
            if page.in_reset:
                return None
            if page.header.watermark_us < effective_us:
                raise Unavailable("it has not seen the last purge itself")
            copy |= decode_entries(page.entries)
            after = page.next_after
            if not after:
                return copy


def _nothing() -> None:
    pass

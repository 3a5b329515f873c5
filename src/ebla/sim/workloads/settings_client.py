"""Clients that set and delete settings on any node."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.ports.environment import Environment
from ebla.settings_store.registry import STATUS_NAME
from ebla.sim.clients import ClientLoad
from ebla.sim.clusters.nodes import SimCluster
from ebla.wire.settings_messages import SettingChange, SettingsPurgeRequest, SettingsWriteRequest
from ebla.wire.verbs import SETTINGS_PURGE, SETTINGS_WRITE

DEADLINE_MS = 4_000
THINK_S = 0.6
NAMES = "abcd"
"""So few that most changes meet another one of the same key."""
NAMES_S = 12.0
"""Then other keys follow: what a clock from the future has deleted is not purged in a run."""
VALUES = 3
PURGE_NAME = "settings_purge"


@dataclass(slots=True, kw_only=True)
class SettingsLoad(ClientLoad):
    cluster: SimCluster
    answered: int = 0

    def hosts(self) -> Sequence[HostId]:
        return [node.host for node in self.cluster.nodes]


class SettingsClient:
    def __init__(self, environment: Environment, name: str, load: SettingsLoad) -> None:
        self._environment = environment
        self._rng = environment.rng
        self._name = name
        self._load = load
        self._nodes = load.cluster.connection(environment, name)

    async def run(self) -> None:
        await self._load.keep_calling(self._try, self._rng, THINK_S)

    async def _try(self) -> None:
        if self._rng.random() < 0.3:
            self._nodes.leave()
            self._nodes = self._load.cluster.connection(self._environment, self._name)
        try:
            await self._act()
        except EblaError:
            await asyncio.sleep(0.05)

    async def _act(self) -> None:
        kind = self._rng.randrange(0, 100)
        if kind < 3:
            await self._purge()
            return
        await self._nodes.call(SETTINGS_WRITE, self._request(kind), DEADLINE_MS)
        self._load.answered += 1

    def _request(self, kind: int) -> SettingsWriteRequest:
        rng = self._rng
        value = f"{rng.randrange(0, VALUES)}"
        if kind < 7:
            host = str(rng.choice(self._load.hosts()))
            change = SettingChange(STATUS_NAME, value if rng.random() < 0.6 else None)
            return SettingsWriteRequest(changes=(change,), on=host, wait_ms=0)
        if kind < 9:
            return SettingsWriteRequest(changes=(purge_change(interval_ms=rng.choice((1_000, 1_500))),), wait_ms=0)
        period = int(asyncio.get_running_loop().time() / NAMES_S)
        chosen = sorted({f"user/{rng.choice(NAMES)}{period}" for _ in range(1 if rng.random() < 0.8 else 3)})
        expected = (SettingChange(chosen[0], value),) if rng.random() < 0.1 else ()
        changes = tuple(SettingChange(key, value if rng.random() < 0.55 else None) for key in chosen)
        return SettingsWriteRequest(changes=changes, expected=expected, wait_ms=rng.choice((0, 0, 300)))

    async def _purge(self) -> None:
        """On a node that may not lead."""
        request = SettingsPurgeRequest(
            round=self._rng.uuid(),
            timeout_ms=self._rng.choice((200, 5_000)),
            older_than_ms=self._rng.choice((0, 1_000)),
        )
        await self._nodes.call(SETTINGS_PURGE, request, DEADLINE_MS)


def purge_change(*, interval_ms: int) -> SettingChange:
    """Rounds without a pause, of all that is deleted."""
    return SettingChange(PURGE_NAME, f'{{"interval_ms": {interval_ms}, "age_ms": 0}}')

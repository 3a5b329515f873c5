"""Metrics of settings, in the control process."""

from ebla.observe.metrics import Metrics
from ebla.settings_store.node_store import SettingsStore
from ebla.settings_store.purge import PurgeResult


class SettingsMetrics:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self._entries = self.metrics.gauge("settings_entries", "Settings that have a value").series()
        self._tombstones = self.metrics.gauge("settings_tombstones", "Deleted settings that are not purged").series()
        self.conflicts = self.metrics.counter("settings_conflicts_total", "Conflicts found by merges").series()
        self.refused = self.metrics.counter("settings_refused_total", "Messages of hosts that are no members").series()
        self.filtered = self.metrics.counter(
            "settings_filtered_total", "Received entries that were dropped because of a purge"
        ).series()
        self._rounds = self.metrics.counter(
            "settings_purge_rounds_total", "Purge rounds that this node ran, by result", labels=("result",)
        )

    def count_round(self, result: PurgeResult) -> None:
        self._rounds.series(result).add()

    def show(self, store: SettingsStore) -> None:
        self._entries.set(store.live_keys)
        self._tombstones.set(len(store.tombstones))

"""What may be excluded, and what an excluded node may do, at every sample.

- INV-FAIL-1: without force, a majority of the voters reported an excluded host down; automatic failover waited for its
  whole time under one leader;
- INV-FAIL-2: no more hosts are excluded automatically than `max_count` between two resets, and each is counted once;
- INV-FAIL-3: a node that is excluded serves nothing (`serving.py`).
"""

from collections import deque
from collections.abc import Sequence

from ebla.group0.failover import voters_of
from ebla.model.identity import HostId
from ebla.model.opinions import OpinionState
from ebla.node.control_process import ControlProcess
from ebla.settings_store.registry import AutoFailoverSettings
from ebla.sim.checkers.serving import ServingChecker
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.world import World
from ebla.topology.snapshot import Exclusion, Snapshot

SAMPLE_S = 0.1
RECENT_S = 30.0
"""An exclusion is seen at most this long after the opinions that it is based on: its run is bounded."""
SLACK_S = 3.0
"""Between the last evaluation and the first sample that shows the exclusion."""


class FailoverChecker:
    def __init__(
        self, world: World, nodes: Sequence[SimNode], settings: AutoFailoverSettings, feed_silence_ms: int
    ) -> None:
        self._world = world
        self._nodes = tuple(nodes)
        self._settings = settings
        self._serving = ServingChecker(world, feed_silence_ms, SAMPLE_S)
        self._voters: deque[tuple[float, tuple[HostId, ...]]] = deque()
        self._down: dict[tuple[HostId, HostId], float] = {}
        """When each node last reported each host down."""
        self._leads: dict[HostId, tuple[int, float]] = {}
        """The term that each host leads in, and since when."""
        self._led_s: dict[HostId, deque[tuple[float, float]]] = {}
        """When each host stopped leading, and how long it had."""
        self._newest: Snapshot | None = None
        self._seen: dict[tuple[HostId, int], Exclusion] = {}
        self._automatic = 0
        """Excluded automatically since the last reset, counted here."""
        self.samples = self.excluded = self.included = self.resets = 0

    def sample(self) -> None:
        self.samples += 1
        now = self._world.now()
        for node in self._nodes:
            process = node.live_control
            if process is not None and node.control.running:
                self._note_opinions(node, process, now)
        snapshots = [node.snapshot for node in self._nodes if node.snapshot is not None]
        for snapshot in sorted(snapshots, key=lambda one: one.version):
            if self._newest is None or snapshot.version > self._newest.version or _count(snapshot) < self._last_count:
                self._check_changes(snapshot, now)
        for node in self._nodes:
            self._serving.sample(node)

    @property
    def _last_count(self) -> int:
        return 0 if self._newest is None else _count(self._newest)

    def _note_opinions(self, node: SimNode, process: ControlProcess, now: float) -> None:
        group0 = None if process.leadership is None else process.leadership.group0
        if group0 is None or not group0.is_running or process.failover is None:
            return
        voters = voters_of(group0.running.store.members.values())
        if not self._voters or self._voters[-1][1] != voters:
            self._voters.append((now, voters))
        while len(self._voters) > 1 and self._voters[1][0] < now - RECENT_S:
            self._voters.popleft()
        for opinion in process.failover.own_opinions():
            if opinion.state is OpinionState.DOWN:
                self._down[(node.host, opinion.host)] = now
        term = group0.running.raft.core.term
        before = self._leads.get(node.host)
        if before is not None and (not group0.leads or before[0] != term):
            del self._leads[node.host]
            self._led_s.setdefault(node.host, deque(maxlen=8)).append((now, now - before[1]))
        if group0.leads and node.host not in self._leads:
            self._leads[node.host] = (term, now)

    def _check_changes(self, snapshot: Snapshot, now: float) -> None:
        before = self._newest
        if before is not None and snapshot.version < before.version:
            return
        self._newest = snapshot
        fresh = [one for one in snapshot.state.exclusions if (one.host, one.since_ms) not in self._seen]
        for one in fresh:
            self._seen[(one.host, one.since_ms)] = one
            self.excluded += 1
            self._world.log("checker", f"{one.host} is excluded{' automatically' if one.is_automatic else ''}")
            self._check_opinions(one, now)
        if before is not None:
            gone = set(before.excluded_hosts) - set(snapshot.excluded_hosts)
            self.included += len(gone)
        self._automatic += sum(one.is_automatic for one in fresh)
        if _count(snapshot) < self._automatic:
            # A reset came in between, perhaps with exclusions after it.
            self.resets += 1
            self._automatic = _count(snapshot)
        if _count(snapshot) != self._automatic:
            self._world.fail(f"INV-FAIL-2: {_count(snapshot)} are counted, and {self._automatic} were excluded")
        if self._automatic > self._settings.max_count:
            self._world.fail(f"INV-FAIL-2: {self._automatic} hosts were excluded automatically")

    def _check_opinions(self, one: Exclusion, now: float) -> None:
        if one.is_forced:
            return
        said = [each.voter for each in one.opinions if each.state is OpinionState.DOWN]
        true = [voter for voter in said if now - self._down.get((voter, one.host), -RECENT_S) < RECENT_S]
        sets = [voters for _, voters in self._voters]
        if not any(len([each for each in true if each in voters]) > len(voters) // 2 for voters in sets):
            self._world.fail(f"INV-FAIL-1: {one.host} is excluded by the opinions of {len(true)} voters")
        if one.is_automatic:
            # The entry of a former leader may be committed by its successor.
            led_s = [length_s for ended, length_s in self._led_s.get(one.by, ()) if ended > now - RECENT_S]
            led_s += [now - self._leads[one.by][1]] if one.by in self._leads else []
            if max(led_s, default=0.0) + SLACK_S < self._settings.after_ms / 1000:
                self._world.fail(f"INV-FAIL-1: {one.by} excludes automatically and has led for {led_s} s")


def _count(snapshot: Snapshot) -> int:
    return snapshot.state.failover_count

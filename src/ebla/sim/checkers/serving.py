"""Nodes that must not serve, at every sample.

- INV-FAIL-3: a node that has known for `feed_silence_ms` that it is excluded serves nothing, also if it is incomplete
  (INV-NODE-23);
- a host that has left serves nothing, at the latest `LEFT_S` later: it learns it by asking members.
"""

from ebla.model.identity import HostId
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.world import World

DRIFT = 1.001
LEFT_S = 20.0
"""Longer than any cut or pause, and the time after which a node asks."""


class ServingChecker:
    def __init__(self, world: World, feed_silence_ms: int, sample_s: float) -> None:
        self._world = world
        self._silence_s = feed_silence_ms / 1000 * DRIFT + 2 * sample_s
        self._excluded_since: dict[HostId, float] = {}
        """Since when each node knows it."""
        self._left_since: dict[HostId, float] = {}

    def sample(self, node: SimNode, *, has_left: bool = False) -> None:
        """`has_left`: by the newest state of the cluster."""
        process = node.live_control
        knows = process is not None and node.host in process.exclusions.hosts()
        excluded_s = self._passed_s(self._excluded_since, node.host, holds=knows)
        left_s = self._passed_s(self._left_since, node.host, holds=has_left)
        for shard in node.shards:
            serves = shard.unit.running and shard.process is not None and shard.process.serves()
            if serves and excluded_s > self._silence_s:
                self._world.fail(f"INV-FAIL-3: {shard.unit.name} serves, {excluded_s:.1f} s after its node knows")
            if serves and left_s > LEFT_S:
                self._world.fail(f"{shard.unit.name} serves, {left_s:.1f} s after its node has left")

    def _passed_s(self, since: dict[HostId, float], host: HostId, *, holds: bool) -> float:
        if not holds:
            since.pop(host, None)
            return 0.0
        now = self._world.now()
        return now - since.setdefault(host, now)

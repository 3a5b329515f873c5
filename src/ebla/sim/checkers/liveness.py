"""Compares failure detection and serving rights with the real state of the world, at every sample.

- INV-LIVE-1: no node considers a peer up that was dead, paused or cut off in one direction for longer than the bound;
- INV-LIVE-2: no node considers a peer down that was running and reachable for longer than the settling time;
- INV-SERVE-1: no shard serves whose control was dead, paused or cut off for longer than the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ebla.control.liveness.failure_detector import PeerState
from ebla.node.control_process import ControlProcess
from ebla.node.shard_process import ShardProcess
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.world import Unit, World

K = TypeVar("K", bound=tuple[object, ...])

SAMPLE_S = 0.1
DRIFT = 1.001
"""A machine's clock may run this much slower than the world's."""
HARMLESS_LATENCY_MS = 400.0
"""On a slower path, or one that loses frames, either opinion is right."""


@dataclass(frozen=True, slots=True)
class LivenessBounds:
    silence_s: float
    settle_s: float
    feed_silence_s: float


class LivenessChecker:
    def __init__(self, world: World, nodes: Sequence[SimNode], bounds: LivenessBounds) -> None:
        self._world = world
        self._nodes = tuple(nodes)
        self._bounds = bounds
        self._impossible_since: dict[tuple[str, str], float] = {}
        self._easy_since: dict[tuple[str, str, int, int], float] = {}
        self.samples = 0

    def sample(self) -> None:
        self.samples += 1
        for node in self._nodes:
            self._watch_pair(node.shards[0].unit, node.control)
            for other in self._nodes:
                if other is not node:
                    self._watch_pair(node.control, other.control)
        for node in self._nodes:
            if node.control.running and node.control_process is not None:
                self._check_opinions(node, node.control_process)
            if node.shards[0].unit.running and node.shards[0].process is not None:
                self._check_serving(node, node.shards[0].process)

    def all_settled(self) -> bool:
        """Every node considers every other node up, and every shard serves."""
        return all(
            node.control_process is not None
            and node.shards[0].process is not None
            and node.shards[0].process.serves()
            and all(opinion.state is PeerState.UP for opinion in node.control_process.peers())
            for node in self._nodes
        )

    def _check_opinions(self, node: SimNode, process: ControlProcess) -> None:
        others = {other.control.host: other.control for other in self._nodes}
        for opinion in process.peers():
            peer = others[opinion.peer.host]
            impossible_s = self._lasted(self._impossible_since, (node.control.name, peer.name))
            easy_s = self._lasted(self._easy_since, self._lives(node.control, peer))
            up = opinion.state is PeerState.UP
            if up and impossible_s > self._bounds.silence_s * DRIFT + SAMPLE_S:
                self._world.fail(
                    f"INV-LIVE-1: {node.control.name} considers {peer.name} up, unreachable for {impossible_s:.1f} s"
                )
            if not up and easy_s > self._bounds.settle_s:
                self._world.fail(
                    f"INV-LIVE-2: {node.control.name} considers {peer.name} down, reachable for {easy_s:.1f} s"
                )

    def _check_serving(self, node: SimNode, process: ShardProcess) -> None:
        impossible_s = self._lasted(self._impossible_since, (node.shards[0].unit.name, node.control.name))
        if process.serves() and impossible_s > self._bounds.feed_silence_s * DRIFT + SAMPLE_S:
            self._world.fail(
                f"INV-SERVE-1: {node.shards[0].unit.name} serves, its control unreachable for {impossible_s:.1f} s"
            )

    def _watch_pair(self, one: Unit, other: Unit) -> None:
        paths = [self._world.network.path(one.name, other.name), self._world.network.path(other.name, one.name)]
        impossible = not other.running or any(path.cuts for path in paths)
        harmless = all(path.extra_latency_ms <= HARMLESS_LATENCY_MS and path.extra_loss == 0.0 for path in paths)
        self._note(self._impossible_since, (one.name, other.name), impossible)
        for key in [key for key in self._easy_since if key[:2] == (one.name, other.name)]:
            if key != self._lives(one, other):
                del self._easy_since[key]
        self._note(self._easy_since, self._lives(one, other), one.running and not impossible and harmless)

    def _note(self, since: dict[K, float], key: K, holds: bool) -> None:
        if not holds:
            since.pop(key, None)
        else:
            since.setdefault(key, self._world.now())

    def _lasted(self, since: dict[K, float], key: K) -> float:
        return self._world.now() - since[key] if key in since else 0.0

    def _lives(self, one: Unit, other: Unit) -> tuple[str, str, int, int]:
        """A restarted process must be detected again."""
        return one.name, other.name, one.start_count, other.start_count

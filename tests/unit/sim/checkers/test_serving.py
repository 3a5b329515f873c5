"""The checkers see a node that serves although it must not, and a request to a host that has left."""

from types import SimpleNamespace
from typing import Any, cast

from tests.unit.topology.small_cluster import cluster, host, node, replica

from ebla.model.identity import TopologyVersion
from ebla.model.token import Token
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.serving import LEFT_S, ServingChecker
from ebla.sim.clusters.nodes import SimNode
from ebla.topology.states import NodeState

SILENCE_MS = 5_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 10.0
        self.problems: list[str] = []

    def now(self) -> float:
        return self.now_s

    def fail(self, text: str) -> None:
        self.problems.append(text)


def sim_node(*, excluded: bool, serves: bool) -> SimNode:
    process = SimpleNamespace(exclusions=SimpleNamespace(hosts=lambda: (host(1),) if excluded else ()))
    unit = SimpleNamespace(running=True, name="n1-s0")
    shard = SimpleNamespace(unit=unit, process=SimpleNamespace(serves=lambda: serves))
    return cast("SimNode", SimpleNamespace(host=host(1), live_control=process, shards=[shard]))


def problems_after(seconds: float, found: SimNode, **sample: Any) -> list[str]:
    clock = Clock()
    checker = ServingChecker(cast("Any", clock), SILENCE_MS, 0.1)
    checker.sample(found, **sample)
    clock.now_s += seconds
    checker.sample(found, **sample)
    return clock.problems


def test_an_excluded_node_may_serve_until_its_feed_counts_as_silent() -> None:
    assert not problems_after(SILENCE_MS / 1000, sim_node(excluded=True, serves=True))
    (problem,) = problems_after(SILENCE_MS / 1000 + 1, sim_node(excluded=True, serves=True))
    assert problem.startswith("INV-FAIL-3: n1-s0 serves, 6.0 s")
    assert not problems_after(SILENCE_MS / 1000 + 1, sim_node(excluded=True, serves=False))
    assert not problems_after(SILENCE_MS / 1000 + 1, sim_node(excluded=False, serves=True))


def test_a_host_that_has_left_may_serve_until_it_has_asked() -> None:
    assert not problems_after(LEFT_S, sim_node(excluded=False, serves=True), has_left=True)
    (problem,) = problems_after(LEFT_S + 1, sim_node(excluded=False, serves=True), has_left=True)
    assert problem == "n1-s0 serves, 21.0 s after its node has left"


def test_a_request_to_a_host_that_has_left_by_its_version_is_found() -> None:
    problems: list[str] = []
    ledger = BarrierLedger(problems.append)
    ledger.saw(cluster(node(1, tokens=(Token(1),)), node(2, state=NodeState.LEFT, tokens=())))
    ledger.sent(replica(1), TopologyVersion(0), replica(2))
    assert not problems
    ledger.sent(replica(1), TopologyVersion(1), replica(1))
    assert not problems
    ledger.sent(replica(1), TopologyVersion(1), replica(2))
    assert "which has left at 1" in problems[0]

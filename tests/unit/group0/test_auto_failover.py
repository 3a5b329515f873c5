"""When automatic failover acts, and the reason for each host that it leaves alone."""

import dataclasses

import pytest
from tests.unit.group0.failover_rig import answers, facts, say
from tests.unit.topology.world import World, cluster, host

from ebla.group0.auto_failover import EVALUATE_MS, GROUP_MS, STALL_MS, AutoFailover, Evaluation, WhyNot
from ebla.group0.failover import Opinions
from ebla.model.identity import HostId
from ebla.model.opinions import Opinion
from ebla.settings_store.registry import AutoFailoverSettings
from ebla.topology.commands import ExcludeHosts, IncludeHost
from ebla.topology.snapshot import Exclusion

AFTER_MS = 10_000
DOWN_3 = ((1, 3), (2, 3))


class Leader:
    """Evaluates every second."""

    def __init__(self, nodes: int = 3, *, max_count: int = 1, enabled: bool = True) -> None:
        self.world: World = cluster(nodes)[0]
        self.nodes = nodes
        self.settings = AutoFailoverSettings(enabled=enabled, after_ms=AFTER_MS, max_count=max_count)
        self.failover = AutoFailover()
        self.now_ms = 50_000
        self.term = 1

    def evaluate(self, opinions: list[Opinion], after_ms: int = EVALUATE_MS, pause_ms: int = 0) -> tuple[HostId, ...]:
        self.now_ms += after_ms
        self.failover.evaluate(
            Evaluation(
                now_ms=self.now_ms,
                term=self.term,
                settings=self.settings,
                facts=facts(self.world.snapshot, opinions, self.nodes),
                pause_ms=pause_ms,
            )
        )
        return self.failover.due

    def keep(self, opinions: list[Opinion], for_ms: int) -> tuple[HostId, ...]:
        for _ in range(for_ms // EVALUATE_MS):
            self.evaluate(opinions)
        return self.failover.due

    def why(self, number: int) -> WhyNot:
        return next(one.why for one in self.failover.down if one.host == host(number))

    def exclude(self, number: int) -> None:
        self.world.do(ExcludeHosts((Exclusion(host=host(number), since_ms=1, by=host(1), is_automatic=True),)))


def test_a_host_is_due_after_the_whole_time() -> None:
    leader = Leader()
    down = answers(3, *DOWN_3)
    assert leader.keep(down, AFTER_MS) == ()
    assert (leader.why(3), leader.failover.down[0].remaining_ms) == (WhyNot.TOO_EARLY, 1_000)
    assert leader.evaluate(down) == (host(3),)
    leader.exclude(3)
    assert leader.evaluate(down) == ()
    assert leader.failover.down == (), "nothing to tell of an excluded host"


def test_the_opinion_of_the_leader_alone_is_not_enough() -> None:
    """INV-FAIL-1."""
    leader = Leader()
    assert leader.keep([say(1, 3), *answers(3)[3:]], 3 * AFTER_MS) == ()
    assert leader.why(3) is WhyNot.NO_MAJORITY


def test_one_evaluation_without_a_majority_starts_the_time_again() -> None:
    leader = Leader()
    down = answers(3, *DOWN_3)
    leader.keep(down, AFTER_MS)
    assert leader.evaluate([say(1, 3)]) == ()
    assert leader.keep(down, AFTER_MS) == ()
    assert leader.evaluate(down) == (host(3),)


def test_the_time_starts_again_after_a_leader_change_and_after_a_stall() -> None:
    for after_ms, pause_ms, term in (
        (EVALUATE_MS + STALL_MS + 1, 0, 1),
        (EVALUATE_MS + STALL_MS // 2, STALL_MS + 1, 1),
        (EVALUATE_MS, 0, 2),
    ):
        leader = Leader()
        down = answers(3, *DOWN_3)
        leader.keep(down, AFTER_MS)
        leader.term = term
        assert leader.evaluate(down, after_ms, pause_ms) == ()
        assert leader.keep(down, AFTER_MS - EVALUATE_MS) == ()
        assert leader.evaluate(down) == (host(3),)
    leader = Leader()
    leader.keep(down, AFTER_MS)
    assert leader.evaluate(down, EVALUATE_MS + STALL_MS, STALL_MS) == (host(3),), "no stall yet"
    leader.failover.stop()
    assert leader.evaluate(down) == ()


def test_hosts_that_went_down_together_are_excluded_together_or_not_at_all() -> None:
    leader = Leader(5, max_count=2)
    one, two = ((1, 4), (2, 4), (3, 4)), ((1, 5), (2, 5), (3, 5))
    leader.keep(answers(5, *one), GROUP_MS)
    both = answers(5, *one, *two)
    assert leader.keep(both, AFTER_MS) == (), "the time runs from the last of them"
    assert leader.evaluate(both) == (host(4), host(5))
    leader.settings = AutoFailoverSettings(enabled=True, after_ms=AFTER_MS, max_count=1)
    assert leader.evaluate(both) == ()
    assert leader.why(4) is leader.why(5) is WhyNot.COUNT_REACHED


def test_a_host_that_went_down_later_is_another_outage() -> None:
    leader = Leader(5, max_count=1)
    one, two = ((1, 4), (2, 4), (3, 4)), ((1, 5), (2, 5), (3, 5))
    leader.keep(answers(5, *one), GROUP_MS + EVALUATE_MS)
    assert leader.keep(answers(5, *one, *two), AFTER_MS - GROUP_MS) == (host(4),)
    leader.exclude(4)
    assert leader.keep(answers(5, *one, *two), 2 * AFTER_MS) == ()
    assert leader.why(5) is WhyNot.COUNT_REACHED


def test_the_count_stops_it_until_it_is_reset() -> None:
    """INV-FAIL-2. The node is recovered, and dies again."""
    leader = Leader()
    down = answers(3, *DOWN_3)
    leader.keep(down, AFTER_MS + EVALUATE_MS)
    leader.exclude(3)
    leader.keep(answers(3), AFTER_MS)
    leader.world.do(IncludeHost(host(3)))
    assert leader.keep(down, 3 * AFTER_MS) == ()
    assert leader.why(3) is WhyNot.COUNT_REACHED


def test_every_host_that_is_down_has_a_reason() -> None:
    leader = Leader(enabled=False)
    leader.evaluate(answers(3, *DOWN_3))
    assert leader.why(3) is WhyNot.DISABLED
    leader.evaluate([say(1, 3)])
    assert leader.why(3) is WhyNot.DISABLED
    leader = Leader()
    leader.world.create_table(4, 1)
    assert leader.keep(answers(3, *DOWN_3), AFTER_MS + EVALUATE_MS) == ()
    assert leader.why(3) is WhyNot.LAST_REPLICA
    leader = Leader(4)
    leader.world.ask_to_join(leader.world.node(9))
    leader.evaluate([say(1, 9), say(2, 9), say(3, 9)])
    assert leader.failover.down == (), "a node that waits to join owns nothing"


def test_it_does_nothing_while_a_majority_of_the_voters_is_down() -> None:
    """Each of three is reported by the two that see all, and by one of the three."""
    leader = Leader(5, max_count=5)
    seen = [say(voter, about) for voter in (1, 2) for about in (3, 4, 5)]
    assert leader.keep([*seen, say(3, 4), say(4, 5), say(5, 3)], 2 * AFTER_MS) == ()
    assert leader.why(3) is WhyNot.VOTERS_DOWN


@pytest.mark.parametrize("answering", [1, 2])
def test_opinions_of_learners_do_not_count(answering: int) -> None:
    """Nodes that were just added vote for nothing, and nothing waits for them."""
    leader = Leader(5)
    found = facts(leader.world.snapshot, [], 3)
    opinions = Opinions(found.opinions.voters, [say(1, 3), *(say(number, 3) for number in (4, 5)[:answering])])
    for _ in range(3 * AFTER_MS // EVALUATE_MS):
        leader.now_ms += EVALUATE_MS
        leader.failover.evaluate(
            Evaluation(
                now_ms=leader.now_ms,
                term=1,
                settings=leader.settings,
                facts=dataclasses.replace(found, opinions=opinions),
                pause_ms=0,
            )
        )
    assert leader.failover.due == ()

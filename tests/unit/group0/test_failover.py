"""Opinions, the checks before an exclusion or inclusion, and which of them force overrides."""

from tests.unit.group0.failover_rig import NONE, answers, facts, say
from tests.unit.topology.world import cluster, host

from ebla.group0.failover import (
    CheckKind,
    FailoverFacts,
    Opinions,
    RecoveryFacts,
    check_exclusion,
    check_inclusion,
    tables_without_replica,
    unmet_checks,
)
from ebla.topology.commands import ExcludeHosts
from ebla.topology.snapshot import Exclusion


def unmet(found: FailoverFacts, *numbers: int, force: bool = False) -> list[CheckKind]:
    hosts = tuple(host(number) for number in numbers)
    return [check.kind for check in unmet_checks(check_exclusion(found, hosts), force=force)]


def test_a_voter_without_an_opinion_counts_as_one_that_reports_it_up() -> None:
    """INV-FAIL-1."""
    opinions = Opinions(map(host, (1, 2, 3)), [say(1, 3), say(2, 3, NONE), say(9, 3)])
    assert not opinions.is_down(host(3)), "host 9 is no voter"
    assert opinions.suspected() == (host(3),)
    assert opinions.answered == (host(1), host(2))
    assert Opinions(map(host, (1, 2, 3)), [say(1, 3), say(2, 3)]).is_down(host(3))


def test_a_dead_node_passes_all_checks_and_they_say_what_was_found() -> None:
    world, _ = cluster(3)
    found = facts(world.snapshot, answers(3, (1, 3), (2, 3)))
    checks = check_exclusion(found, (host(3),))
    assert all(check.is_met for check in checks)
    texts = "\n".join(check.text for check in checks)
    assert "10.0.0.3 is a member (normal) and not the leader" in texts
    assert "down for 2 of 3 voters: 10.0.0.1 (40 s), 10.0.0.2 (40 s)" in texts
    assert "2 of 2 remaining voters are up; after this the quorum tolerates 0 more failures" in texts


def test_force_overrides_opinions_and_last_replicas_and_nothing_else() -> None:
    world, _ = cluster(3)
    world.create_table(4, 1)
    alive = facts(world.snapshot, answers(3))
    assert unmet(alive, 3) == [CheckKind.DOWN, CheckKind.REPLICAS]
    assert unmet(alive, 3, force=True) == []
    assert unmet(alive, 1, force=True) == [CheckKind.MEMBER], "the leader"
    assert unmet(alive, 9, force=True) == [CheckKind.MEMBER], "unknown"
    alone = facts(world.snapshot, [say(1, 2), say(1, 3)])
    assert unmet(alone, 3, force=True) == [CheckKind.VOTERS], "of hosts 1 and 2 only one answers"
    assert unmet(facts(world.snapshot, answers(3), leader=host(2)), 1, 2, 3, force=True)[-1] is CheckKind.VOTERS


def test_a_table_loses_its_last_replica_if_the_others_are_down_or_excluded() -> None:
    world, _ = cluster(4)
    table = world.create_table(8, 2)
    name = world.snapshot.tables[table].full_name
    assert tables_without_replica(world.snapshot, (host(4),), (host(4),)) == ()
    assert tables_without_replica(world.snapshot, (host(4),), tuple(map(host, (2, 3, 4)))) == (name,)
    world.do(ExcludeHosts(tuple(Exclusion(host=host(number), since_ms=1, by=host(1)) for number in (2, 3))))
    found = facts(world.snapshot, answers(4, (1, 4), (2, 4), (3, 4)), voters=4)
    assert CheckKind.REPLICAS in unmet(found, 4)


def test_a_host_is_included_if_it_is_up_near_and_leased() -> None:
    world, _ = cluster(3)
    found = facts(world.snapshot, answers(3))
    ready = RecoveryFacts(is_up=True, behind_entries=64, is_leased=True)
    assert not check_inclusion(found, host(3), ready)[0].is_met, "it is not excluded"
    world.do(ExcludeHosts((Exclusion(host=host(3), since_ms=1, by=host(1)),)))
    found = facts(world.snapshot, answers(3))
    assert all(check.is_met for check in check_inclusion(found, host(3), ready))
    for lacking in (
        RecoveryFacts(is_up=False, behind_entries=0, is_leased=True),
        RecoveryFacts(is_up=True, behind_entries=65, is_leased=True),
        RecoveryFacts(is_up=True, behind_entries=None, is_leased=True),
        RecoveryFacts(is_up=True, behind_entries=0, is_leased=False),
    ):
        assert sum(not check.is_met for check in check_inclusion(found, host(3), lacking)) == 1

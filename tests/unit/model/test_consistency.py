from itertools import combinations

import pytest

from ebla.model.consistency import (
    LEVELS,
    ConsistencyLevel,
    Needed,
    ReplicaCounts,
    answers_needed,
    is_met,
    quorum_of,
)

L = ConsistencyLevel
COUNTS = ReplicaCounts(total=5, by_datacenter={"dc1": 3, "dc2": 2})
PENDING = {"dc1": 1}


def test_every_level_has_a_rule_and_the_number_of_the_protocol() -> None:
    assert LEVELS.keys() == set(L)
    assert {level.name: level.value for level in L} == {
        "ONE": 1,
        "TWO": 2,
        "THREE": 3,
        "QUORUM": 4,
        "ALL": 5,
        "LOCAL_QUORUM": 6,
        "EACH_QUORUM": 7,
        "LOCAL_ONE": 10,
    }


@pytest.mark.parametrize(
    ("level", "read", "write_with_pending"),
    [
        (L.ONE, (Needed(None, 1),), (Needed(None, 2),)),
        (L.TWO, (Needed(None, 2),), (Needed(None, 3),)),
        (L.THREE, (Needed(None, 3),), (Needed(None, 4),)),
        (L.QUORUM, (Needed(None, 3),), (Needed(None, 4),)),
        (L.ALL, (Needed(None, 5),), (Needed(None, 6),)),
        (L.LOCAL_ONE, (Needed("dc1", 1),), (Needed("dc1", 2),)),
        (L.LOCAL_QUORUM, (Needed("dc1", 2),), (Needed("dc1", 3),)),
        (L.EACH_QUORUM, (Needed("dc1", 2), Needed("dc2", 2)), (Needed("dc1", 3), Needed("dc2", 2))),
    ],
)
def test_what_each_level_needs(
    level: ConsistencyLevel, read: tuple[Needed, ...], write_with_pending: tuple[Needed, ...]
) -> None:
    assert answers_needed(level, COUNTS, "dc1") == read
    assert answers_needed(level, COUNTS, "dc1", PENDING) == write_with_pending


def test_a_pending_replica_elsewhere_does_not_count_locally() -> None:
    assert answers_needed(L.LOCAL_QUORUM, COUNTS, "dc2", PENDING) == (Needed("dc2", 2),)


def test_a_datacenter_without_replicas_has_no_local_quorum() -> None:
    needed = answers_needed(L.LOCAL_QUORUM, COUNTS, "dc3")
    assert not is_met(needed, ["dc1"] * 3 + ["dc2"] * 2)


def test_the_first_replica_of_a_datacenter_is_all_that_is_asked_of_it() -> None:
    counts = ReplicaCounts(3, {"dc1": 3})
    assert answers_needed(L.EACH_QUORUM, counts, "dc1", {"dc2": 1}) == (Needed("dc1", 2), Needed("dc2", 1))


@pytest.mark.parametrize("replicas", range(1, 10))
def test_any_two_quorums_share_a_replica(replicas: int) -> None:
    count = quorum_of(replicas)
    assert 2 * count > replicas
    assert 2 * (count - 1) <= replicas


def test_when_answers_are_enough() -> None:
    each = answers_needed(L.EACH_QUORUM, COUNTS, "dc1")
    assert is_met(each, ["dc1", "dc1", "dc2", "dc2"])
    assert not is_met(each, ["dc1", "dc1", "dc1", "dc2"])
    anywhere = answers_needed(L.QUORUM, COUNTS, "dc1")
    assert all(is_met(anywhere, chosen) for chosen in combinations(["dc1"] * 3 + ["dc2"] * 2, 3))
    assert not is_met(anywhere, ["dc1", "dc2"])

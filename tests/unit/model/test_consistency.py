from itertools import combinations

import pytest

from ebla.model.consistency import (
    LEVELS,
    ConsistencyLevel,
    ReplicaCounts,
    RequiredReplies,
    is_met,
    quorum_of,
    required_replies,
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
        (L.ONE, (RequiredReplies(None, 1),), (RequiredReplies(None, 2),)),
        (L.TWO, (RequiredReplies(None, 2),), (RequiredReplies(None, 3),)),
        (L.THREE, (RequiredReplies(None, 3),), (RequiredReplies(None, 4),)),
        (L.QUORUM, (RequiredReplies(None, 3),), (RequiredReplies(None, 4),)),
        (L.ALL, (RequiredReplies(None, 5),), (RequiredReplies(None, 6),)),
        (L.LOCAL_ONE, (RequiredReplies("dc1", 1),), (RequiredReplies("dc1", 2),)),
        (L.LOCAL_QUORUM, (RequiredReplies("dc1", 2),), (RequiredReplies("dc1", 3),)),
        (
            L.EACH_QUORUM,
            (RequiredReplies("dc1", 2), RequiredReplies("dc2", 2)),
            (RequiredReplies("dc1", 3), RequiredReplies("dc2", 2)),
        ),
    ],
)
def test_what_each_level_needs(
    level: ConsistencyLevel, read: tuple[RequiredReplies, ...], write_with_pending: tuple[RequiredReplies, ...]
) -> None:
    assert required_replies(level, COUNTS, "dc1") == read
    assert required_replies(level, COUNTS, "dc1", PENDING) == write_with_pending


def test_a_pending_replica_elsewhere_does_not_count_locally() -> None:
    assert required_replies(L.LOCAL_QUORUM, COUNTS, "dc2", PENDING) == (RequiredReplies("dc2", 2),)


def test_a_datacenter_without_replicas_has_no_local_quorum() -> None:
    needed = required_replies(L.LOCAL_QUORUM, COUNTS, "dc3")
    assert not is_met(needed, ["dc1"] * 3 + ["dc2"] * 2)


def test_the_first_replica_of_a_datacenter_is_all_that_is_asked_of_it() -> None:
    counts = ReplicaCounts(3, {"dc1": 3})
    assert required_replies(L.EACH_QUORUM, counts, "dc1", {"dc2": 1}) == (
        RequiredReplies("dc1", 2),
        RequiredReplies("dc2", 1),
    )


@pytest.mark.parametrize("replicas", range(1, 10))
def test_any_two_quorums_share_a_replica(replicas: int) -> None:
    count = quorum_of(replicas)
    assert 2 * count > replicas
    assert 2 * (count - 1) <= replicas


def test_when_answers_are_enough() -> None:
    each = required_replies(L.EACH_QUORUM, COUNTS, "dc1")
    assert is_met(each, ["dc1", "dc1", "dc2", "dc2"])
    assert not is_met(each, ["dc1", "dc1", "dc1", "dc2"])
    anywhere = required_replies(L.QUORUM, COUNTS, "dc1")
    assert all(is_met(anywhere, chosen) for chosen in combinations(["dc1"] * 3 + ["dc2"] * 2, 3))
    assert not is_met(anywhere, ["dc1", "dc2"])

"""Which features the cluster uses, and which a node lacks."""

import uuid

import pytest

from ebla.control.group0.member_features import missing_features, why_not_in_use
from ebla.group0.members import Member, MemberRole, member_key
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.topology.keys import STATE
from ebla.topology.snapshot import TopologyState
from ebla.version import Feature

PURGE = Feature.SETTINGS_PURGE


def member(number: int, role: MemberRole, *features: str) -> Member:
    host = HostId(uuid.UUID(int=number))
    return Member(host=host, role=role, address=Address("h", number), features=features)


def store_of(enabled: tuple[str, ...] | None, *members: Member) -> Group0Store:
    """`enabled` None: there is no topology yet."""
    store = Group0Store((HistoryStart(HistoryId(uuid.UUID(int=7)), 0),))
    store.index = 1
    rows = {member_key(one.host): encode_stored(StoredValue(one)) for one in members}
    if enabled is not None:
        rows[STATE] = encode_stored(StoredValue(TopologyState(enabled_features=enabled)))
    store.entries = {key: KeyEntry(value, store.revision) for key, value in rows.items()}
    store.rebuild_indexes()
    return store


VOTER, LEARNER = member(1, MemberRole.VOTER, PURGE), member(2, MemberRole.LEARNER, PURGE)


@pytest.mark.parametrize(
    ("enabled", "members", "words"),
    [
        ((PURGE,), (VOTER, LEARNER), ""),
        ((PURGE,), (VOTER, member(3, MemberRole.REMOVED)), ""),
        ((PURGE,), (VOTER, LEARNER, member(3, MemberRole.LEARNER)), str(uuid.UUID(int=3))),
        ((PURGE,), (VOTER, member(3, MemberRole.VOTER, "another")), str(uuid.UUID(int=3))),
        ((), (VOTER, LEARNER), "not enabled"),
        (None, (VOTER, LEARNER), "not enabled"),
    ],
)
def test_a_feature_is_in_use_once_enabled_and_advertised_by_every_present_member(
    enabled: tuple[str, ...] | None, members: tuple[Member, ...], words: str
) -> None:
    obstacle = why_not_in_use(store_of(enabled, *members), PURGE)
    assert bool(obstacle) is bool(words)
    assert words in obstacle


def test_a_node_lacks_what_is_enabled_and_it_does_not_support() -> None:
    store = store_of(("alpha", "beta"), VOTER)
    assert missing_features(store, ("beta", "gamma")) == ("alpha",)
    assert missing_features(store_of(None, VOTER), ()) == ()

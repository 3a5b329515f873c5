"""Which features the cluster uses, and which a node lacks."""

import uuid

import pytest

from ebla.control.group0.member_features import common_features, missing_features, unsettled_hosts, why_not_in_use
from ebla.group0.members import Member, MemberRole, member_key
from ebla.group0.operations import UNFINISHED_OPERATION_KEY, OperationKind, UnfinishedOperation
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.topology.keys import STATE, encode, node_key
from ebla.topology.snapshot import Node, TopologyState
from ebla.topology.states import JOINING_STATES, NodeState, TransitionState
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
    store = store_of(("alpha", "beta"), member(1, MemberRole.VOTER))
    assert missing_features(store, ("beta", "gamma")) == ("alpha",)
    assert missing_features(store_of(None, member(1, MemberRole.VOTER)), ()) == ()


def test_a_node_does_not_start_without_what_all_members_have_advertised() -> None:
    """The leader may have seen that all support it, and be about to enable it."""
    assert missing_features(store_of((), VOTER, LEARNER), ()) == (PURGE,)
    assert missing_features(store_of((), VOTER, LEARNER, member(3, MemberRole.REMOVED)), ()) == (PURGE,)
    assert missing_features(store_of((), VOTER, LEARNER, member(3, MemberRole.LEARNER)), ()) == ()


def row(number: int, state: NodeState) -> Node:
    return Node(
        host=HostId(uuid.UUID(int=number)),
        datacenter="dc1",
        rack="r1",
        shard_count=1,
        ignore_msb=0,
        release_version="1",
        address="h",
        num_tokens=1,
        state=state,
    )


@pytest.mark.parametrize(
    ("transition", "leaves"),
    [
        (None, False),
        (TransitionState.TABLET_DRAINING, False),
        (TransitionState.WRITE_BOTH_READ_OLD, False),
        (TransitionState.WRITE_BOTH_READ_NEW, True),
        (TransitionState.LEFT_TOKEN_RING, True),
        (TransitionState.ROLLBACK_TO_NORMAL, False),
    ],
)
def test_who_takes_no_seat_because_of_its_row(transition: TransitionState | None, leaves: bool) -> None:
    """A node that joins never does; one that leaves, from the point of no return on; one that is rebuilt does."""
    states = dict(enumerate(NodeState, 10))
    members = [member(number, MemberRole.LEARNER) for number in states]
    store = store_of((), member(1, MemberRole.LEARNER), member(2, MemberRole.REMOVED), *members)
    for number, state in states.items():
        store.entries[node_key(HostId(uuid.UUID(int=number)))] = KeyEntry(encode(row(number, state)), store.revision)
    store.entries[STATE] = KeyEntry(encode(TopologyState(transition=transition)), store.revision)
    leaving = (NodeState.DECOMMISSIONING, NodeState.REMOVING) if leaves else ()
    expected = [1, *(number for number, state in states.items() if state in (*JOINING_STATES, *leaving))]
    assert sorted(host.int for host in unsettled_hosts(store)) == expected, "1 has no row"
    assert unsettled_hosts(store_of(None, member(1, MemberRole.VOTER))) == (), "the founder, before the topology"


def test_features_are_common_if_every_present_member_and_the_host_being_added_have_them() -> None:
    """A feature that was enabled without the host that is being added could not be read by it."""
    store = store_of((), VOTER, LEARNER, member(3, MemberRole.REMOVED))
    assert common_features(store) == (PURGE,)
    record = UnfinishedOperation(kind=OperationKind.ADD_LEARNER, members=(member(4, MemberRole.LEARNER),), lock=b"")
    store.entries[UNFINISHED_OPERATION_KEY] = KeyEntry(encode_stored(StoredValue(record)), store.revision)
    assert common_features(store) == ()

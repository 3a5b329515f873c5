"""The replicated state machine, entry by entry."""

import uuid

import msgspec
import pytest

from ebla.group0 import snapshot
from ebla.group0.answer_cache import ANSWERS_PER_CLIENT_MAX
from ebla.group0.change_feed import KeyChange
from ebla.group0.commands import (
    AcquireLock,
    CallId,
    ChangeMembers,
    CommandBody,
    ConditionFailed,
    Done,
    Forgotten,
    Group0Command,
    LockRevoked,
    Rejected,
    decode_command,
    encode_command,
)
from ebla.group0.members import Member, MemberRole
from ebla.group0.store import ApplyResult, Group0Store, HistoryStart, PresentMembers, sender_refusal
from ebla.model.errors import Corruption
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import (
    Change,
    Condition,
    DeleteKey,
    KeyMissing,
    KeyUnchanged,
    MembersUnchanged,
    PutKey,
    Revision,
    Transaction,
)
from ebla.topology.keys import STATE
from ebla.topology.snapshot import TopologyState
from ebla.version import Feature

HISTORY = HistoryId(uuid.UUID(int=7))
CLIENT = uuid.UUID(int=1)


class Driver:
    """Applies bodies one after another, each as a new call of one client."""

    def __init__(self) -> None:
        self.store = Group0Store((HistoryStart(HISTORY, 0),))
        self.serial = 0

    def do(self, body: CommandBody, serial: int | None = None, incarnation: int = 1, answered: int = 0) -> ApplyResult:
        if serial is None:
            self.serial += 1
            serial = self.serial
        call = CallId(client=CLIENT, incarnation=incarnation, serial=serial, answered_through=answered)
        command = decode_command(encode_command(Group0Command(call, body)))
        return self.store.apply(self.store.index + 1, command)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def change(*changes: Change, when: tuple[Condition, ...] = (), lock: bytes | None = None) -> Transaction:
    return Transaction(when, changes, lock)


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number << 100 | number))


def member(number: int, role: MemberRole = MemberRole.VOTER, rack: str = "r") -> Member:
    return Member(host=host(number), role=role, address=Address("127.0.0.1", number), rack=rack)


def test_a_transaction_changes_all_its_keys_at_one_revision(driver: Driver) -> None:
    applied = driver.do(change(PutKey("user/a", b"1"), PutKey("user/b", b"2")))
    assert applied.answer == Done(Revision(HISTORY, 1))
    assert [driver.store.entries[key].revision.index for key in driver.store.keys("user/")] == [1, 1]
    assert applied.step.changes == (KeyChange("user/a", b"1"), KeyChange("user/b", b"2"))


def test_a_failed_condition_changes_nothing_and_names_the_key(driver: Driver) -> None:
    driver.do(change(PutKey("user/a", b"1")))
    stale = KeyUnchanged("user/a", Revision(HISTORY, 99))
    applied = driver.do(change(PutKey("user/b", b"2"), when=(stale,)))
    assert applied.answer == ConditionFailed("user/a", Revision(HISTORY, 1))
    assert applied.step.changes == ()
    assert driver.store.keys("") == ["user/a"]


def test_missing_is_a_condition(driver: Driver) -> None:
    create = change(PutKey("user/a", b"1"), when=(KeyMissing("user/a"),))
    assert isinstance(driver.do(create).answer, Done)
    assert driver.do(create).answer == ConditionFailed("user/a", Revision(HISTORY, 1))


def test_a_revision_of_another_history_does_not_hold(driver: Driver) -> None:
    driver.do(change(PutKey("user/a", b"1")))
    foreign = KeyUnchanged("user/a", Revision(HistoryId(uuid.UUID(int=8)), 1))
    assert isinstance(driver.do(change(DeleteKey("user/a"), when=(foreign,))).answer, ConditionFailed)


def test_deleting_what_is_not_there_is_done_and_silent(driver: Driver) -> None:
    applied = driver.do(change(DeleteKey("user/none")))
    assert isinstance(applied.answer, Done)
    assert applied.step.changes == ()


def test_a_key_twice_in_one_transaction_is_rejected(driver: Driver) -> None:
    assert isinstance(driver.do(change(PutKey("user/a", b"1"), DeleteKey("user/a"))).answer, Rejected)
    assert driver.store.keys("") == []


def test_a_revoked_lock_applies_as_an_empty_change(driver: Driver) -> None:
    driver.do(AcquireLock(b"first"))
    assert isinstance(driver.do(change(PutKey("user/a", b"1"), lock=b"first")).answer, Done)
    driver.do(AcquireLock(b"second"))
    applied = driver.do(change(PutKey("user/a", b"2"), lock=b"first"))
    assert applied.answer == LockRevoked(b"second")
    assert driver.store.entries["user/a"].value == b"1"


def test_a_lock_nobody_acquired_is_revoked(driver: Driver) -> None:
    assert driver.do(change(PutKey("user/a", b"1"), lock=b"never")).answer == LockRevoked(None)


def test_a_membership_change_under_a_revoked_lock_changes_nothing(driver: Driver) -> None:
    driver.do(AcquireLock(b"first"))
    driver.do(AcquireLock(b"second"))
    applied = driver.do(ChangeMembers((member(1),), lock=b"first"))
    assert applied.answer == LockRevoked(b"second")
    assert not applied.members_changed
    assert driver.store.members == {}


def features_enabled(*features: str) -> Transaction:
    state = TopologyState(enabled_features=features)
    return change(PutKey(STATE, encode_stored(StoredValue(state))))


def test_a_membership_entry_needs_a_lock_from_the_entry_on_that_enables_the_feature(driver: Driver) -> None:
    """A log of an earlier release has entries without one, and every node must compute the same members from it."""
    assert isinstance(driver.do(ChangeMembers((member(1),))).answer, Done)
    driver.do(features_enabled("another"))
    assert isinstance(driver.do(ChangeMembers((member(2),))).answer, Done)
    driver.do(features_enabled("another", Feature.MEMBERSHIP_LOCK))
    refused = driver.do(ChangeMembers((member(3),)))
    assert isinstance(refused.answer, Rejected)
    assert not refused.members_changed
    driver.do(AcquireLock(b"lock"))
    assert isinstance(driver.do(ChangeMembers((member(3),), lock=b"lock")).answer, Done)


def test_a_snapshot_carries_whether_membership_entries_need_a_lock(driver: Driver) -> None:
    driver.do(ChangeMembers((member(1),)))
    driver.do(features_enabled(Feature.MEMBERSHIP_LOCK))
    builder = snapshot.StoreBuilder()
    for chunk in snapshot.encode(snapshot.freeze(driver.store)):
        builder.add(chunk)
    driver.store = builder.finish()
    assert isinstance(driver.do(ChangeMembers((member(2),))).answer, Rejected)


def test_members_stand_under_their_keys_and_in_the_feed(driver: Driver) -> None:
    applied = driver.do(ChangeMembers((member(1), member(2, MemberRole.LEARNER))))
    assert applied.members_changed
    assert [entry.key for entry in applied.step.changes] == [f"members/{host(1)}", f"members/{host(2)}"]
    assert [one.role for one in driver.store.members.values()] == [MemberRole.VOTER, MemberRole.LEARNER]


def test_a_removed_member_never_comes_back(driver: Driver) -> None:
    driver.do(ChangeMembers((member(1), member(2))))
    driver.do(ChangeMembers((member(2, MemberRole.REMOVED),)))
    answer = driver.do(ChangeMembers((member(2, MemberRole.LEARNER),))).answer
    assert isinstance(answer, Rejected)
    assert "never come back" in answer.reason


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ((), "names no host"),
        ((member(1, MemberRole.LEARNER),), "without a voter"),
        ((member(1), member(1, MemberRole.LEARNER)), "twice"),
        ((member(9, MemberRole.REMOVED),), "not a member"),
    ],
)
def test_illegal_membership_changes_are_rejected(driver: Driver, wanted: tuple[Member, ...], word: str) -> None:
    driver.do(ChangeMembers((member(1),)))
    applied = driver.do(ChangeMembers(wanted))
    assert isinstance(applied.answer, Rejected)
    assert word in applied.answer.reason
    assert not applied.members_changed


def test_two_hosts_of_one_raft_number_cannot_both_be_members(driver: Driver) -> None:
    twin = Member(host=HostId(uuid.UUID(int=host(1).int + 1)), role=MemberRole.VOTER, address=Address("127.0.0.2", 1))
    driver.do(ChangeMembers((member(1),)))
    assert isinstance(driver.do(ChangeMembers((twin,))).answer, Rejected)


def test_an_address_belongs_to_one_member_at_a_time(driver: Driver) -> None:
    driver.do(ChangeMembers((member(1), member(2))))
    newcomer = Member(host=host(3), role=MemberRole.LEARNER, address=member(2).address)
    refused = driver.do(ChangeMembers((newcomer,))).answer
    assert isinstance(refused, Rejected)
    assert f"ebla group0 remove {host(2)}" in refused.reason
    driver.do(ChangeMembers((member(2, MemberRole.REMOVED),)))
    assert isinstance(driver.do(ChangeMembers((newcomer,))).answer, Done)


def test_transactions_cannot_write_member_keys(driver: Driver) -> None:
    assert isinstance(driver.do(change(PutKey(f"members/{host(1)}", b"x"))).answer, Rejected)


def test_a_condition_on_the_members_holds_until_one_of_them_changes(driver: Driver) -> None:
    driver.do(ChangeMembers((member(1), member(2))))
    driver.do(change(PutKey("user/a", b"1")))
    read = driver.store.present_members()
    assert read == PresentMembers((member(1), member(2)), Revision(HISTORY, 1))
    put = change(PutKey("user/b", b"1"), when=(MembersUnchanged(read.revision),))
    assert isinstance(driver.do(put).answer, Done)
    driver.do(ChangeMembers((member(2, MemberRole.REMOVED),)))
    assert driver.do(put).answer == ConditionFailed("members/", Revision(HISTORY, 4))
    assert driver.store.present_members() == PresentMembers((member(1),), Revision(HISTORY, 4))


def test_a_rejected_membership_change_is_none(driver: Driver) -> None:
    driver.do(ChangeMembers((member(1),)))
    driver.do(ChangeMembers((member(9, MemberRole.REMOVED),)))
    put = change(PutKey("user/a", b"1"), when=(MembersUnchanged(Revision(HISTORY, 1)),))
    assert isinstance(driver.do(put).answer, Done)


def test_a_snapshot_carries_the_revision_of_the_last_membership_change(driver: Driver) -> None:
    driver.do(ChangeMembers((member(1), member(2))))
    driver.do(ChangeMembers((member(2, MemberRole.REMOVED),)))
    driver.do(change(PutKey("user/a", b"1")))
    builder = snapshot.StoreBuilder()
    for chunk in snapshot.encode(snapshot.freeze(driver.store)):
        builder.add(chunk)
    restored = builder.finish()
    assert restored.present_members() == driver.store.present_members() == PresentMembers(
        (member(1),), Revision(HISTORY, 2)
    )  # fmt: skip


NEXT_HISTORY, FOREIGN = HistoryId(uuid.UUID(int=6)), HistoryId(uuid.UUID(int=8))


def after_failover() -> Driver:
    """The second history began after index 3 of the first. Its last membership change, at 5, removed host 2."""
    driver = Driver()
    driver.do(ChangeMembers((member(1), member(2))))
    for _ in range(2):
        driver.do(change(PutKey("user/a", b"1")))
    driver.store.chain = (HistoryStart(HISTORY, 0), HistoryStart(NEXT_HISTORY, 3))
    driver.do(change(PutKey("user/a", b"2")))
    driver.do(ChangeMembers((member(2, MemberRole.REMOVED),)))
    return driver


@pytest.mark.parametrize(
    ("since", "holds"),
    [
        (Revision(NEXT_HISTORY, 5), True),
        (Revision(NEXT_HISTORY, 9), True),
        (Revision(NEXT_HISTORY, 4), False),
        (Revision(HISTORY, 1), False),
        (Revision(HISTORY, 9), False),
        (Revision(FOREIGN, 9), False),
    ],
)
def test_a_condition_on_the_members_follows_the_histories(since: Revision, holds: bool) -> None:
    driver = after_failover()
    answer = driver.do(change(PutKey("user/b", b"1"), when=(MembersUnchanged(since),))).answer
    assert answer == (Done(driver.store.revision) if holds else ConditionFailed("members/", Revision(NEXT_HISTORY, 5)))


@pytest.mark.parametrize(
    ("sender", "revision", "word"),
    [
        (1, Revision(NEXT_HISTORY, 5), ""),
        (1, Revision(NEXT_HISTORY, 4), ""),
        (1, Revision(HISTORY, 1), ""),
        (2, Revision(NEXT_HISTORY, 5), "not a member"),
        (2, Revision(HISTORY, 1), "not a member"),
        (3, Revision(NEXT_HISTORY, 5), "not a member"),
        (3, Revision(NEXT_HISTORY, 6), ""),
        (1, Revision(HISTORY, 4), "does not know"),
        (3, Revision(HISTORY, 9), "does not know"),
        (1, Revision(FOREIGN, 5), "does not know"),
        (3, Revision(FOREIGN, 9), "does not know"),
    ],
)
def test_a_sender_is_a_member_or_knows_of_later_changes_in_this_line_of_histories(
    sender: int, revision: Revision, word: str
) -> None:
    refusal = sender_refusal(after_failover().store, host(sender), revision)
    assert bool(refusal) is bool(word)
    assert word in refusal


def test_a_repeated_call_gets_its_first_answer_and_changes_nothing(driver: Driver) -> None:
    first = driver.do(change(PutKey("user/a", b"1")), serial=5)
    driver.do(change(PutKey("user/a", b"2")), serial=6)
    again = driver.do(change(PutKey("user/a", b"1")), serial=5)
    assert again.answer == first.answer
    assert again.step.changes == ()
    assert driver.store.entries["user/a"].value == b"2"


def test_a_refusal_is_remembered_like_a_success(driver: Driver) -> None:
    wants_missing = change(PutKey("user/a", b"2"), when=(KeyMissing("user/a"),))
    driver.do(change(PutKey("user/a", b"1")), serial=1)
    refused = driver.do(wants_missing, serial=2)
    driver.do(change(DeleteKey("user/a")), serial=3)
    assert driver.do(wants_missing, serial=2).answer == refused.answer
    assert driver.store.keys("") == []


def test_serials_may_arrive_out_of_order(driver: Driver) -> None:
    driver.do(change(PutKey("user/b", b"2")), serial=2)
    assert isinstance(driver.do(change(PutKey("user/a", b"1")), serial=1).answer, Done)


def test_what_was_acknowledged_or_overflowed_is_forgotten_and_said_so(driver: Driver) -> None:
    driver.do(change(PutKey("user/a", b"1")), serial=1)
    driver.do(change(PutKey("user/a", b"2")), serial=2, answered=1)
    assert isinstance(driver.do(change(PutKey("user/a", b"1")), serial=1).answer, Forgotten)
    for serial in range(3, 3 + ANSWERS_PER_CLIENT_MAX):
        driver.do(change(PutKey("user/a", b"x")), serial=serial, answered=1)
    assert len(driver.store.answers.clients[CLIENT].answers) == ANSWERS_PER_CLIENT_MAX
    assert isinstance(driver.do(change(PutKey("user/a", b"2")), serial=2).answer, Forgotten)


def test_an_older_incarnation_is_ambiguous_and_a_newer_one_starts_anew(driver: Driver) -> None:
    driver.do(change(PutKey("user/a", b"1")), serial=1, incarnation=2)
    assert isinstance(driver.do(change(PutKey("user/a", b"0")), serial=1, incarnation=1).answer, Forgotten)
    assert isinstance(driver.do(change(PutKey("user/a", b"3")), serial=1, incarnation=3).answer, Done)


def test_a_snapshot_carries_everything_that_decides(driver: Driver) -> None:
    driver.do(AcquireLock(b"lock"))
    driver.do(ChangeMembers((member(1),)))
    first = driver.do(change(PutKey("user/a", b"1"), when=(KeyMissing("user/a"),)), serial=50)
    builder = snapshot.StoreBuilder()
    for chunk in snapshot.encode(snapshot.freeze(driver.store)):
        builder.add(chunk)
    restored = Driver()
    restored.store = builder.finish()
    assert restored.store.entries == driver.store.entries
    assert restored.store.members == driver.store.members
    assert restored.store.revision == driver.store.revision
    again = restored.do(change(PutKey("user/a", b"1"), when=(KeyMissing("user/a"),)), serial=50)
    assert again.answer == first.answer
    assert restored.do(change(PutKey("user/b", b"1"), lock=b"old"), serial=51).answer == LockRevoked(b"lock")


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20, 1 << 30])
def test_a_snapshot_may_be_cut_anywhere(driver: Driver, piece_bytes: int) -> None:
    """A file's pieces and a wire's chunks have limits of their own, which a few large values pass."""
    for number in range(5):
        driver.do(change(PutKey(f"user/{number}", b"v" * (100 if piece_bytes < 100 else 400_000))), serial=number + 1)
    whole = b"".join(snapshot.encode(snapshot.freeze(driver.store)))
    builder = snapshot.StoreBuilder()
    for start in range(0, len(whole), piece_bytes):
        builder.add(whole[start : start + piece_bytes])
    assert builder.finish().entries == driver.store.entries


def test_a_snapshot_holds_its_keys_in_order_and_one_that_does_not_is_read_too(driver: Driver) -> None:
    for number, name in enumerate(("c", "a", "b")):
        driver.do(change(PutKey(f"user/{name}", b"v")), serial=number + 1)
    names = ["user/a", "user/b", "user/c"]
    builder = snapshot.StoreBuilder()
    for chunk in snapshot.encode(snapshot.freeze(driver.store)):
        builder.add(chunk)
    assert [key for key in builder.finish().entries if key.startswith("user/")] == names
    unordered = snapshot.StoreBuilder()
    history = driver.store.chain
    rows = tuple((f"user/{name}", b"v", 1) for name in "cab")
    for part in (
        snapshot.SnapshotHeader(format=snapshot.FORMAT, chain=history, index=9, lock=None),
        snapshot.SnapshotEntries(rows),
        snapshot.SnapshotEnd(3, 0),
    ):
        data = msgspec.msgpack.encode(part)
        unordered.add(len(data).to_bytes(4) + data)
    assert unordered.finish().keys("user/") == names


def test_a_frozen_store_does_not_follow_later_changes(driver: Driver) -> None:
    driver.do(change(PutKey("user/a", b"1")))
    frozen = snapshot.freeze(driver.store)
    driver.do(change(PutKey("user/a", b"2")))
    assert frozen.entries["user/a"].value == b"1"
    assert len(frozen.answers.clients[CLIENT].answers) == 1


@pytest.mark.parametrize("broken", ["cut", "swapped", "garbage", "empty"])
def test_a_damaged_snapshot_is_refused(driver: Driver, broken: str) -> None:
    driver.do(change(PutKey("user/a", b"1")))
    chunks = list(snapshot.encode(snapshot.freeze(driver.store)))
    spoiled = {"cut": chunks[:-1], "swapped": chunks[::-1], "garbage": [b"\xff", *chunks], "empty": []}[broken]
    builder = snapshot.StoreBuilder()

    def build() -> None:
        for chunk in spoiled:
            builder.add(chunk)
        builder.finish()

    with pytest.raises(Corruption, match="snapshot is damaged"):
        build()


def test_after_a_snapshot_the_feed_names_every_changed_key_deletions_too(driver: Driver) -> None:
    driver.do(change(PutKey("user/gone", b"1"), PutKey("user/same", b"1"), PutKey("user/new", b"1")))
    behind = Driver()
    behind.do(change(PutKey("user/gone", b"1"), PutKey("user/same", b"1"), PutKey("user/new", b"1")))
    driver.do(change(DeleteKey("user/gone"), PutKey("user/new", b"2")))
    driver.do(change(PutKey("user/later", b"3")))
    later = snapshot.freeze(driver.store)
    later.rebuild_indexes()
    step = later.follow(behind.store)
    assert step.index == 3
    named = (KeyChange("user/gone", None), KeyChange("user/later", b"3"), KeyChange("user/new", b"2"))
    assert step.changes == named
    resumed = later.recent.after(1, "user/")
    assert resumed is not None
    assert [one.changes for one in resumed] == [named]


def test_after_a_restart_from_a_snapshot_the_feed_does_not_claim_to_know_earlier_deletions(driver: Driver) -> None:
    driver.do(change(PutKey("user/gone", b"1")))
    driver.do(change(DeleteKey("user/gone"), PutKey("user/a", b"1")))
    builder = snapshot.StoreBuilder()
    for chunk in snapshot.encode(snapshot.freeze(driver.store)):
        builder.add(chunk)
    started = builder.finish()
    step = started.follow(Driver().store)
    assert step.changes == (KeyChange("user/a", b"1"),)
    assert started.recent.after(1, "user/") is None
    assert started.recent.after(2, "user/") == ()


def test_the_feed_resumes_from_an_index_or_says_that_it_cannot(driver: Driver) -> None:
    for number in range(3):
        driver.do(change(PutKey(f"user/{number}", b"x")))
    steps = driver.store.recent.after(1, "user/")
    assert steps is not None
    assert [step.index for step in steps] == [2, 3]
    assert driver.store.recent.after(3, "user/") == ()
    driver.store.recent.floor = 2
    assert driver.store.recent.after(1, "user/") is None

"""The store as a Raft group's state machine: answers, waiters, and changes that are void."""

import asyncio
import uuid

from ebla.control.group0.state_machine import Group0StateMachine
from ebla.group0.change_feed import ChangeSet
from ebla.group0.commands import (
    AcquireLock,
    CallId,
    ChangeMembers,
    CommandAnswer,
    CommandBody,
    Done,
    Group0Command,
    LockRevoked,
    encode_command,
)
from ebla.group0.members import Member, MemberRole
from ebla.group0.snapshot import StoreBuilder, encode, freeze
from ebla.group0.store import Group0Store, HistoryStart
from ebla.model.identity import Address, HistoryId, HostId
from ebla.model.transaction import PutKey, Transaction
from ebla.raft.membership import LEAVE_JOINT, MembershipChange
from ebla.raft.messages import Entry, EntryKind

CLIENT = uuid.UUID(int=1)


def new_machine() -> Group0StateMachine:
    return Group0StateMachine(Group0Store((HistoryStart(HistoryId(uuid.UUID(int=7)), 0),)))


def call(serial: int) -> CallId:
    return CallId(client=CLIENT, incarnation=1, serial=serial, answered_through=0)


def command(serial: int, body: CommandBody) -> bytes:
    return encode_command(Group0Command(call(serial), body))


def put(serial: int) -> bytes:
    return command(serial, Transaction((), (PutKey("user/a", b"1"),)))


async def test_whoever_waits_for_a_call_gets_its_answer_and_the_index() -> None:
    machine = new_machine()
    waiting: asyncio.Future[CommandAnswer] = asyncio.get_running_loop().create_future()
    machine.on_answer(call(1), waiting.set_result)
    reached = asyncio.ensure_future(machine.wait_applied(2))
    machine.apply(Entry(index=1, term=1))
    await asyncio.sleep(0)
    assert not reached.done()
    machine.apply(Entry(index=2, term=1, data=put(1)))
    await reached
    answer = await waiting
    assert answer == Done(machine.store.revision)


async def test_a_change_under_a_revoked_lock_reaches_neither_the_store_nor_the_quorum() -> None:
    machine = new_machine()
    machine.apply(Entry(index=1, term=1, data=command(1, AcquireLock(b"one"))))
    machine.apply(Entry(index=2, term=1, data=command(2, AcquireLock(b"two"))))
    member = Member(host=HostId(uuid.UUID(int=1 << 100)), role=MemberRole.VOTER, address=Address("h", 1))
    waiting: asyncio.Future[CommandAnswer] = asyncio.get_running_loop().create_future()
    machine.on_answer(call(3), waiting.set_result)
    change = MembershipChange(context=command(3, ChangeMembers((member,), b"one")))
    assert not machine.apply_membership(Entry(index=3, term=1, data=b"", kind=EntryKind.MEMBERS), change)
    assert await waiting == LockRevoked(b"two")
    change = MembershipChange(context=command(4, ChangeMembers((member,), b"two")))
    assert machine.apply_membership(Entry(index=4, term=1, data=b"", kind=EntryKind.MEMBERS), change)


def test_leaving_a_joint_phase_is_the_cores_own_matter() -> None:
    machine = new_machine()
    assert machine.apply_membership(Entry(index=1, term=1, data=b"", kind=EntryKind.MEMBERS), LEAVE_JOINT)
    assert machine.store.index == 1


async def test_a_snapshot_answers_the_calls_it_covers_and_feeds_the_watchers() -> None:
    ahead, behind = new_machine(), new_machine()
    for machine in (ahead, behind):
        machine.apply(Entry(index=1, term=1, data=put(1)))
    ahead.apply(Entry(index=2, term=1, data=put(2)))
    seen: list[ChangeSet] = []
    behind.watch(seen.append)
    waiting: asyncio.Future[CommandAnswer] = asyncio.get_running_loop().create_future()
    behind.on_answer(call(2), waiting.set_result)
    builder = StoreBuilder()
    for chunk in encode(freeze(ahead.store)):
        builder.add(chunk)
    behind.install(builder.finish())
    assert isinstance(await waiting, Done)
    assert [step.index for step in seen] == [2]
    await behind.wait_applied(2)


def test_a_watcher_hears_of_what_is_below_its_prefix_and_of_every_snapshot() -> None:
    ahead, behind = new_machine(), new_machine()
    near: list[ChangeSet] = []
    far: list[ChangeSet] = []
    for machine in (ahead, behind):
        machine.apply(Entry(index=1, term=1, data=put(1)))
    (key,) = (change.key for change in behind.store.content(""))
    behind.watch(near.append, key[:1])
    behind.watch(far.append, f"not-{key}")
    for machine in (ahead, behind):
        machine.apply(Entry(index=2, term=1, data=put(2)))
    assert [step.index for step in near] == [2]
    assert far == []
    ahead.apply(Entry(index=3, term=1, data=put(3)))
    builder = StoreBuilder()
    for chunk in encode(freeze(ahead.store)):
        builder.add(chunk)
    behind.install(builder.finish())
    assert [step.index for step in near] == [2, 3]
    assert [step.index for step in far] == [3]

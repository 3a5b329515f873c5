"""Whether a start is confirmed: the decision table, row by row, and races between two starts."""

import itertools
import uuid

import msgspec
import pytest

from ebla.group0.start_record import (
    MustNotRun,
    OwnStart,
    StartDecision,
    StartRecord,
    confirmation,
    decide_start,
    start_key,
    start_refusal,
)
from ebla.model.identity import HistoryId, HostId, StartId, StoreId
from ebla.model.stored_value import StoredValue, decode_stored
from ebla.model.transaction import KeyMissing, KeyUnchanged, PutKey, Revision

HOST = HostId(uuid.UUID(int=0x21AB))
MINE, THEIRS = (StartId(uuid.UUID(int=number)) for number in (1, 2))
A, B, C = (StoreId(uuid.UUID(int=number)) for number in (10, 11, 12))
D = StartDecision


def record(incarnation: int, start: StartId = THEIRS, stores: tuple[StoreId, ...] = (A, B)) -> StartRecord:
    return StartRecord(incarnation=incarnation, start=start, stores=stores)


def own(previous: int = 7, stores: tuple[StoreId, ...] = (A, B)) -> OwnStart:
    return OwnStart(previous_incarnation=previous, record=record(previous + 1, MINE, stores))


@pytest.mark.parametrize(
    ("known", "mine", "decision"),
    [
        (None, own(), D.CONFIRM),
        (None, own(previous=0, stores=()), D.CONFIRM),
        (record(7), own(), D.CONFIRM),
        # Starts that were not confirmed, or whose commit was lost, leave gaps.
        (record(3), own(), D.CONFIRM),
        (record(7), own(stores=(A, B, C)), D.CONFIRM),
        (record(7, stores=()), own(), D.CONFIRM),
        (record(8, MINE), own(), D.CONFIRMED),
        (record(8, THEIRS), own(), D.OTHER_PROCESS),
        (record(8, MINE, (A, C)), own(), D.OTHER_PROCESS),
        (record(9), own(), D.OLDER_COPY),
        (record(9, stores=(C,)), own(), D.OLDER_COPY),
        (record(7, stores=(A, C)), own(), D.FOREIGN_STORES),
        (record(7, stores=(A, B, C)), own(), D.FOREIGN_STORES),
        (record(7, stores=(B, A)), own(), D.FOREIGN_STORES),
        (record(7), own(stores=()), D.FOREIGN_STORES),
    ],
)
def test_the_decision(known: StartRecord | None, mine: OwnStart, decision: StartDecision) -> None:
    assert decide_start(known, mine) is decision


def test_whatever_is_committed_is_greater_than_what_it_replaces_and_keeps_the_stores() -> None:
    """Over all small records and folders."""
    stores = [(), (A,), (A, B), (B,), (C, B)]
    for incarnation, previous in itertools.product(range(1, 5), range(4)):
        for recorded, mine, start in itertools.product(stores, stores, (MINE, THEIRS)):
            known, folder = record(incarnation, start, recorded), own(previous, mine)
            if decide_start(known, folder) is D.CONFIRM:
                assert folder.record.incarnation > incarnation
                assert mine[: len(recorded)] == recorded
            if decide_start(known, folder) is D.CONFIRMED:
                assert known == folder.record


def test_a_confirmation_depends_on_the_record_that_was_read() -> None:
    first = confirmation(HOST, own(), None, None)
    assert first.conditions == (KeyMissing(start_key(HOST)),)
    (put,) = first.changes
    assert isinstance(put, PutKey)
    assert decode_stored(StartRecord, put.value).value == own().record
    revision = Revision(HistoryId(uuid.UUID(int=5)), 40)
    later = msgspec.msgpack.encode("of a later release")
    again = confirmation(HOST, own(), StoredValue(record(7), (later,)), revision)
    assert again.conditions == (KeyUnchanged(start_key(HOST), revision),)
    (put,) = again.changes
    assert isinstance(put, PutKey)
    assert decode_stored(StartRecord, put.value) == StoredValue(own().record, (later,))


@pytest.mark.parametrize(
    ("known", "mine", "said"),
    [
        (
            record(9),
            own(),
            f"older copy of host {HOST}: it ends at incarnation 7, group 0 has 9",
        ),
        (
            record(8),
            own(),
            f"another process has started with the identity of this node (host {HOST}): group 0 has",
        ),
        (record(7, stores=(A, C)), own(), f"shard 1 of host {HOST} has store {C} in group 0, and store {B} in this"),
        (record(7, stores=(A, B, C)), own(), f"shard 2 of host {HOST} has store {C} in group 0, and store none in"),
    ],
)
def test_a_refusal_names_both_values_and_the_way_out(known: StartRecord, mine: OwnStart, said: str) -> None:
    error = start_refusal(decide_start(known, mine), HOST, known, mine)
    assert isinstance(error, MustNotRun)
    assert said in error.message
    assert "Nothing was changed" in error.message
    assert "ebla group0 remove" in error.advice
    assert "empty folder" in error.advice

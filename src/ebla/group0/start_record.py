"""Whether a node that starts may run: its record in group 0 against its own folder. Pure.

A *start* is one run of the control process. It has an incarnation, which the node writes durably to its mark before
anything else, and a random start id. The record `incarnations/<host>` holds the last confirmed start of the host and
the ids of its stores. A node serves only after its own start is in the record:

1. It reads the record by quorum and calls `decide_start`.
2. CONFIRM: it commits `confirmation(...)`, conditional on the record it read, and goes to 1. The answer to that commit
   proves nothing: answers are remembered by host and incarnation, and a process on a copy of the folder gets the answer
   that the original got.
3. CONFIRMED: it serves. Anything else: it stops.

The committed incarnations of a host strictly grow. A commit needs a recorded incarnation that is not above
the last confirmed one in the mark, and replaces it by a greater one.

An older copy of a folder cannot pass. Its mark has a confirmed incarnation below the recorded one, because the
original was confirmed at least once after the copy was taken (a copy taken within the same start is not covered). Of
two processes that start on copies of one folder at a time, the condition lets one commit; the other finds another start
id.
"""

import enum

import msgspec

from ebla.model.advice import replace_node_advice
from ebla.model.errors import Refused
from ebla.model.identity import HostId, StartId, StoreId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import KeyMissing, KeyUnchanged, PutKey, Revision, Transaction

START_PREFIX = "incarnations/"


class StartRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    incarnation: int
    start: StartId
    stores: tuple[StoreId, ...]
    """By shard number; also those of shard numbers that the node no longer uses."""


class OwnStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the node that starts has in its mark."""

    previous_incarnation: int
    """The last one that group 0 confirmed, as the mark has it (`JoinState.confirmed` says why not that of the last
    start)."""
    record: StartRecord
    """As it will stand in group 0: the incarnation and id of this start, and every store that the mark names."""


class StartDecision(enum.StrEnum):
    CONFIRM = "confirm"
    """Commit this start, then decide again."""
    CONFIRMED = "confirmed"
    OLDER_COPY = "older_copy"
    """The host was started again after this folder was copied."""
    OTHER_PROCESS = "other_process"
    """Another process uses the same incarnation: one of the two runs on a copy."""
    FOREIGN_STORES = "foreign_stores"
    """The host was confirmed with stores that this folder does not have."""


class MustNotRun(Refused):
    """Group 0 or the peers show that this node must not run. The node ends with exit status 3."""


def start_key(host: HostId) -> str:
    return f"{START_PREFIX}{host}"


def decide_start(record: StartRecord | None, own: OwnStart) -> StartDecision:
    assert own.record.incarnation > own.previous_incarnation, "each start has an incarnation of its own"
    if record is None:
        return StartDecision.CONFIRM
    if record == own.record:
        return StartDecision.CONFIRMED
    if record.incarnation == own.record.incarnation:
        return StartDecision.OTHER_PROCESS
    if record.incarnation > own.previous_incarnation:
        return StartDecision.OLDER_COPY
    if record.stores != own.record.stores[: len(record.stores)]:
        return StartDecision.FOREIGN_STORES
    return StartDecision.CONFIRM


def confirmation(
    host: HostId, own: OwnStart, read: StoredValue[StartRecord] | None, revision: Revision | None
) -> Transaction:
    """Commits this start if the record is still the one that was read."""
    key = start_key(host)
    stored = StoredValue(own.record) if read is None else read.with_value(own.record)
    condition = KeyMissing(key) if revision is None else KeyUnchanged(key, revision)
    return Transaction((condition,), (PutKey(key, encode_stored(stored)),))


def start_refusal(decision: StartDecision, host: HostId, record: StartRecord | None, own: OwnStart) -> MustNotRun:
    """Why the node stops. Nothing was changed."""
    assert decision not in (StartDecision.CONFIRM, StartDecision.CONFIRMED), "this start is not refused"
    assert record is not None, "without a record nothing contradicts the start"
    return MustNotRun(
        f"{_contradiction(decision, host, record, own)}. Nothing was changed", advice=replace_node_advice(host)
    )


def _contradiction(decision: StartDecision, host: HostId, record: StartRecord, own: OwnStart) -> str:
    if decision is StartDecision.OLDER_COPY:
        return (
            f"this folder is an older copy of host {host}: it ends at incarnation {own.previous_incarnation}, "
            f"group 0 has {record.incarnation}"
        )
    if decision is StartDecision.OTHER_PROCESS:
        return (
            f"another process has started with the identity of this node (host {host}): "
            f"group 0 has start {record.start}, this is start {own.record.start}"
        )
    stores = own.record.stores
    shard = next(number for number, store in enumerate(record.stores) if store not in stores[number : number + 1])
    found = str(stores[shard]) if shard < len(stores) else "none"
    return f"shard {shard} of host {host} has store {record.stores[shard]} in group 0, and store {found} in this folder"

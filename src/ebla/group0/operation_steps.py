"""Decides the steps of a run from what it has read: begin, continue, repair, undo, quarantine, complete. Pure."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ebla.group0.members import Member, MemberRole, member_key, why_illegal
from ebla.group0.operation_table import (
    OPERATIONS,
    Refusal,
    Repair,
    removal_commands,
    with_fields,
    with_returned_address,
)
from ebla.group0.operations import (
    UNFINISHED_FAILOVER_KEY,
    UNFINISHED_OPERATION_KEY,
    EndedOperation,
    Operation,
    OperationCode,
    OperationKind,
    OperationResult,
    OperationState,
    StoredRecord,
    UnfinishedOperation,
    ended_operation_key,
)
from ebla.model.identity import HostId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import Change, Condition, DeleteKey, KeyMissing, KeyUnchanged, PutKey, Transaction
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import Command

ENDED_MAX = 64
"""How many ended operations are kept; quarantined ones stay until they are dismissed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Of one attempt of a run: what its record carries."""

    lock: bytes
    host: HostId
    now_ms: int
    repair_id: uuid.UUID
    """For an operation that undoes another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Commit the transaction, then complete the record: its membership entry, and its deletion."""

    record: UnfinishedOperation
    transaction: Transaction
    is_own: bool
    """Completing it completes the caller's operation. Otherwise it repairs another one, and the caller's is decided
    again."""


@dataclass(frozen=True, slots=True)
class OperationEnd:
    """The record goes, because the operation is complete or never will be (it is quarantined)."""

    ended: tuple[EndedOperation, ...]
    """Its own end. After an undo, that of the undone operation last."""
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class AlreadyEnded:
    """The operation ended before; or its effect is there, or there is nothing to repair (None)."""

    ended: EndedOperation | None


Decision = CommitRecord | OperationEnd | AlreadyEnded | Refusal


def decide(operation: Operation | None, state: OperationState, run: RunIdentity) -> Decision:
    """What an attempt does next with what it has read. Without an operation: what the janitor does."""
    if state.has_unfinished_failover:
        return Refusal(
            code=OperationCode.UNFINISHED_FAILOVER,
            reason="a quorum failover has not ended yet",
            advice="wait until it has ended",
        )
    if operation is not None:
        ended = next((one for one in state.ended if one.id == operation.id), None)
        if ended is not None:
            return AlreadyEnded(ended)
    if state.record is not None:
        is_own = operation is not None and is_same(operation, state.record.value)
        return _continue(state, state.record, run, is_own=is_own)
    if operation is None:
        return AlreadyEnded(None)
    return _begin(operation, state, run)


def is_same(operation: Operation, record: UnfinishedOperation) -> bool:
    """Ids are not compared: an operator who repeats a command continues it."""
    is_alike = operation.kind is record.kind and sorted(operation.hosts) == sorted(record.hosts)
    return is_alike and OPERATIONS[record.kind].is_same(operation, record)


def _begin(operation: Operation, state: OperationState, run: RunIdentity) -> Decision:
    plan = OPERATIONS[operation.kind].plan(operation, state, run.now_ms)
    if isinstance(plan, Refusal):
        return plan
    pending = pending_members((*plan.members, *plan.readdressed), state.members)
    if not pending and not plan.commands:
        return AlreadyEnded(None)
    illegal = why_illegal(state.members, pending) if pending else None
    if illegal is not None:
        return Refusal(code=OperationCode.INVALID, reason=illegal)
    record = UnfinishedOperation(
        kind=operation.kind,
        members=plan.members,
        lock=run.lock,
        id=operation.id,
        host=run.host,
        start_ms=run.now_ms,
        reason=operation.reason,
        readdressed=plan.readdressed,
    )
    transaction = _keys_and_record(plan.commands, record, state)
    if isinstance(transaction, Rejection):
        return Refusal(reason=transaction.reason)
    return CommitRecord(record=record, transaction=transaction, is_own=True)


def _continue(state: OperationState, found: StoredRecord, run: RunIdentity, *, is_own: bool) -> Decision:
    """A record proves that its key changes are committed."""
    record = found.value
    if OPERATIONS[record.kind].repair is Repair.UNDO and not is_own:
        return _undo(state, found, run, "its run did not come to its end")
    renewed = msgspec.structs.replace(
        record,
        members=_targets(record.members, state.members, OPERATIONS[record.kind].fields),
        readdressed=_targets(record.readdressed, state.members, ("address",)),
        lock=run.lock,
        host=run.host,
    )
    pending = pending_members(renewed.entry, state.members)
    illegal = why_illegal(state.members, pending) if pending else None
    if illegal is not None:
        return rejected(state, run, illegal)
    transaction = _keys_and_record((), renewed, state)
    assert isinstance(transaction, Transaction), "no command, no rejection"
    return CommitRecord(record=renewed, transaction=transaction, is_own=is_own)


def rejected(state: OperationState, run: RunIdentity, reason: str) -> CommitRecord | OperationEnd:
    """The membership entry of the record can never be applied."""
    found = state.record
    assert found is not None, "what is rejected has a record"
    if OPERATIONS[found.value.kind].repair is Repair.UNDO:
        return _undo(state, found, run, reason)
    return _quarantine(state, found, run, reason)


def _undo(state: OperationState, found: StoredRecord, run: RunIdentity, reason: str) -> CommitRecord | OperationEnd:
    """An add becomes the removal of its host. The row moves to `left` in the same transaction: otherwise the next
    leader could drive the join of a host that is about to be removed."""
    record = found.value
    (added,) = record.members
    commands = removal_commands(state.snapshot, added.host, f"its addition was undone: {reason}", run.now_ms)
    if isinstance(commands, Refusal):
        return _quarantine(state, found, run, commands.reason)
    removed = msgspec.structs.replace(state.member(added.host) or added, role=MemberRole.REMOVED)
    removal = UnfinishedOperation(
        kind=OperationKind.REMOVE,
        members=(removed,),
        readdressed=with_returned_address(state, removed),
        lock=run.lock,
        id=run.repair_id,
        host=run.host,
        start_ms=run.now_ms,
        repairs=record.id,
        reason=reason,
    )
    transaction = _keys_and_record(commands, removal, state)
    if isinstance(transaction, Rejection):
        return _quarantine(state, found, run, transaction.reason)
    return CommitRecord(record=removal, transaction=transaction, is_own=False)


def _quarantine(state: OperationState, found: StoredRecord, run: RunIdentity, reason: str) -> OperationEnd:
    ended = (_ended(found.value, OperationResult.QUARANTINED, reason, run),)
    return OperationEnd(ended, _ending(state, found, ended, run))


# ---- the steps


def pending_members(targets: tuple[Member, ...], members: Mapping[str, Member]) -> tuple[Member, ...]:
    """What the membership entry still has to change. The removal of a host that never became a member is done."""
    pending = []
    for target in targets:
        known = members.get(member_key(target.host))
        if known != target and not (known is None and not target.present):
            pending.append(target)
    return tuple(pending)


def voters_after(members: Mapping[str, Member], targets: tuple[Member, ...]) -> tuple[HostId, ...]:
    after = {member.host: member.role for member in (*members.values(), *targets)}
    return tuple(sorted(host for host, role in after.items() if role is MemberRole.VOTER))


def completion(state: OperationState, run: RunIdentity) -> OperationEnd:
    """Step 5: deletes the record and tells how the operation ended. Until then a repair may undo it."""
    found = state.record
    assert found is not None, "only a record that is there is deleted"
    record = found.value
    assert record.lock == run.lock, "a run deletes the record that it wrote"
    ended: tuple[EndedOperation, ...] = (_ended(record, OperationResult.DONE, record.reason, run),)
    if record.repairs is not None:
        undone = msgspec.structs.replace(
            ended[0], id=record.repairs, kind=OperationKind.ADD_LEARNER, result=OperationResult.UNDONE
        )
        ended = (*ended, undone)
    return OperationEnd(ended, _ending(state, found, ended, run))


def dismissal(state: OperationState, operation: uuid.UUID) -> Transaction | Refusal:
    """An operator has looked at a quarantined operation."""
    found = next((one for one in state.ended if one.id == operation), None)
    if found is None or found.result is not OperationResult.QUARANTINED:
        return Refusal(code=OperationCode.INVALID, reason=f"no quarantined operation has the id {operation}")
    return Transaction((), (DeleteKey(ended_operation_key(operation)),))


def _targets(
    recorded: tuple[Member, ...], members: Mapping[str, Member], fields: tuple[str, ...]
) -> tuple[Member, ...]:
    """The record's members, in the entries of now: what the operation does not change may have changed since."""
    known = [members.get(member_key(target.host)) for target in recorded]
    return tuple(
        target if here is None else with_fields(here, target, fields)
        for here, target in zip(known, recorded, strict=True)
    )


def _keys_and_record(
    commands: tuple[Command, ...], record: UnfinishedOperation, state: OperationState
) -> Transaction | Rejection:
    """Step 3: the key changes and the record, conditional on everything that was read."""
    conditions: dict[str, Condition] = {UNFINISHED_FAILOVER_KEY: KeyMissing(UNFINISHED_FAILOVER_KEY)}
    changes: tuple[Change, ...] = ()
    if commands:
        applied = apply_commands(state.snapshot, commands)
        if isinstance(applied, Rejection):
            return applied
        conditions |= {each.key: each for each in applied.transaction.conditions}
        changes = applied.transaction.changes
    found = state.record
    conditions[UNFINISHED_OPERATION_KEY] = KeyMissing(UNFINISHED_OPERATION_KEY) if found is None else _unchanged(found)
    keys = {key for key, member in state.members.items() if member.present}
    for key in sorted(keys | {member_key(member.host) for member in record.entry}):
        revision = state.revisions.get(key)
        conditions[key] = KeyMissing(key) if revision is None else KeyUnchanged(key, revision)
    stored = StoredValue(record) if found is None else found.stored.with_value(record)
    put = PutKey(UNFINISHED_OPERATION_KEY, encode_stored(stored))
    return Transaction(tuple(conditions[key] for key in sorted(conditions)), (*changes, put), record.lock)


def _unchanged(found: StoredRecord) -> KeyUnchanged:
    return KeyUnchanged(UNFINISHED_OPERATION_KEY, found.revision)


def _ended(record: UnfinishedOperation, result: OperationResult, reason: str, run: RunIdentity) -> EndedOperation:
    return EndedOperation(
        id=record.id,
        kind=record.kind,
        members=record.members,
        result=result,
        reason=reason,
        start_ms=record.start_ms,
        end_ms=run.now_ms,
        host=run.host,
    )


def _ending(
    state: OperationState, found: StoredRecord, ended: tuple[EndedOperation, ...], run: RunIdentity
) -> Transaction:
    """Without the record, with these ended operations, and without the oldest ones that are too many."""
    fresh = {one.id for one in ended}
    old = [one for one in state.ended if one.result is not OperationResult.QUARANTINED and one.id not in fresh]
    surplus = old[: max(0, len(old) + len(ended) - ENDED_MAX)]
    changes: tuple[Change, ...] = (
        DeleteKey(UNFINISHED_OPERATION_KEY),
        *(DeleteKey(ended_operation_key(one.id)) for one in surplus),
        *(PutKey(ended_operation_key(one.id), encode_stored(StoredValue(one))) for one in ended),
    )
    return Transaction((_unchanged(found),), changes, run.lock)

"""`exclude` and `include` as operations: their keys, their members, and what a repeat does."""

import uuid

import msgspec
import pytest
from tests.unit.group0.failover_rig import member, say
from tests.unit.topology.world import HISTORY, World, cluster, host

from ebla.group0.members import MemberRole, member_key
from ebla.group0.operation_steps import AlreadyEnded, CommitRecord, RunIdentity, decide
from ebla.group0.operation_table import Refusal
from ebla.group0.operations import Operation, OperationKind, OperationState, StoredRecord, UnfinishedOperation
from ebla.model.stored_value import StoredValue
from ebla.model.transaction import Revision, Transaction
from ebla.topology.snapshot_builder import advance

RUN = RunIdentity(lock=b"lock", host=host(1), now_ms=7, repair_id=uuid.UUID(int=9))


def operation(kind: OperationKind, *numbers: int, automatic: bool = False) -> Operation:
    return Operation(
        id=uuid.UUID(int=1),
        kind=kind,
        hosts=tuple(map(host, numbers)),
        is_automatic=automatic,
        opinions=(say(1, 3), say(2, 3)),
        leader=host(1),
    )


def state(world: World, *learners: int, record: UnfinishedOperation | None = None) -> OperationState:
    members = [
        member(number, MemberRole.LEARNER if number in learners else MemberRole.VOTER) for number in (1, 2, 3, 4)
    ]
    at = Revision(HISTORY, 5)
    return OperationState(
        members={member_key(one.host): one for one in members},
        revisions={member_key(one.host): at for one in members},
        snapshot=world.snapshot,
        record=None if record is None else StoredRecord(StoredValue(record), at),
        ended=(),
        has_unfinished_failover=False,
    )


def committed(world: World, decision: object) -> UnfinishedOperation:
    """Applies the topology part of the transaction."""
    assert isinstance(decision, CommitRecord)
    changes = tuple(one for one in decision.transaction.changes if one.key.startswith("topology/"))
    entries = world.group0.commit(Transaction((), changes))
    assert entries is not None
    world.snapshot = advance(world.snapshot, entries)
    return decision.record


def test_exclude_changes_keys_and_roles_together() -> None:
    world, _ = cluster(4)
    record = committed(world, decide(operation(OperationKind.EXCLUDE, 3, 4, automatic=True), state(world, 4), RUN))
    assert [one.role for one in record.members] == [MemberRole.LEARNER] * 2
    first, second = world.snapshot.state.exclusions
    assert (first.host, first.by, first.is_automatic, first.opinions) == (
        host(3),
        host(1),
        True,
        (say(1, 3), say(2, 3)),
    )
    assert (second.host, second.opinions) == (host(4), ())
    assert world.snapshot.state.failover_count == 2


def test_a_repeat_of_an_exclusion_does_not_count_again() -> None:
    world, _ = cluster(4)
    asked = operation(OperationKind.EXCLUDE, 3, automatic=True)
    record = committed(world, decide(asked, state(world), RUN))
    again = msgspec.structs.replace(asked, id=uuid.UUID(int=2))
    repeated = decide(again, state(world, record=record), RUN)
    committed(world, repeated)
    assert world.snapshot.state.failover_count == 1
    assert decide(again, state(world, 3), RUN) == AlreadyEnded(None), "both parts are there"


@pytest.mark.parametrize("role", [MemberRole.VOTER, MemberRole.LEARNER])
def test_include_gives_the_role_that_was_chosen(role: MemberRole) -> None:
    world, _ = cluster(4)
    committed(world, decide(operation(OperationKind.EXCLUDE, 3), state(world), RUN))
    asked = msgspec.structs.replace(operation(OperationKind.INCLUDE, 3), roles=(role,))
    record = committed(world, decide(asked, state(world, 3), RUN))
    assert [one.role for one in record.members] == [role]
    assert not world.snapshot.state.exclusions
    assert decide(asked, state(world, 3), RUN) == AlreadyEnded(None)


def test_an_unknown_host_is_refused() -> None:
    world, _ = cluster(3)
    for kind in (OperationKind.EXCLUDE, OperationKind.INCLUDE):
        assert isinstance(decide(operation(kind, 77), state(world), RUN), Refusal)

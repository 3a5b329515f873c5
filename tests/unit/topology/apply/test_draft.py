"""What a commit depends on: a step on the topology row, the three side kinds on their own keys."""

import uuid

from tests.unit.topology.world import World, cluster, host

from ebla.model.identity import Replica, SessionId, ShardNumber, TableId
from ebla.model.transaction import DeleteKey, KeyMissing, KeyUnchanged, PutKey
from ebla.topology import keys
from ebla.topology.apply.command import apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.apply.schema import BULK_CLOSED_KEPT
from ebla.topology.commands import (
    AdvanceTablets,
    CloseSessions,
    Command,
    DropTable,
    MarkCdcPublished,
    OpenBulkSession,
    SetBalancing,
    StartMoves,
    SubmitJoin,
    TabletAdvance,
    TabletMove,
    WriteCdcPart,
)
from ebla.topology.snapshot import CdcGenerationPart, Session
from ebla.topology.states import NodeRequestKind, SessionKind, TabletStage, TransitionKind


def applied(world: World, command: Command) -> ProposedChange:
    result = apply_command(world.snapshot, command)
    assert isinstance(result, ProposedChange), result
    return result


def bulk_session(table: TableId) -> Session:
    return Session(id=SessionId(uuid.UUID(int=5)), kind=SessionKind.BULK_JOB, table=table, deadline_ms=9_000_000)


def test_a_step_depends_on_the_topology_row_alone() -> None:
    world, _ = cluster(2)
    command = SubmitJoin(world.node(3), world.request(NodeRequestKind.JOIN, 3))
    transaction = applied(world, command).transaction
    assert transaction.conditions == (KeyUnchanged(keys.STATE, world.snapshot.revisions[keys.STATE]),)
    assert keys.STATE in [change.key for change in transaction.changes]
    assert [change.key for change in transaction.changes] == sorted({change.key for change in transaction.changes})


def test_the_very_first_step_depends_on_there_being_none() -> None:
    world = World()
    transaction = applied(world, SetBalancing(False)).transaction
    assert transaction.conditions == (KeyMissing(keys.STATE),)


def test_of_two_steps_on_one_snapshot_the_second_is_not_committed() -> None:
    world, _ = cluster(2)
    first = applied(world, SetBalancing(False))
    second = applied(world, SubmitJoin(world.node(3), world.request(NodeRequestKind.JOIN, 3)))
    world.commit(first)
    assert world.group0.commit(second.transaction) is None


def test_a_table_made_meanwhile_stops_a_node_from_leaving_with_its_tablets() -> None:
    """The write skew that the one condition rules out."""
    world, _ = cluster(2)
    step = applied(world, SetBalancing(True))
    world.create_table(2, 1)
    assert world.group0.commit(step.transaction) is None


def test_a_bulk_job_that_opens_does_not_hold_up_a_step() -> None:
    world, _ = cluster(2)
    table = world.create_table(2, 1)
    step = applied(world, SetBalancing(False))
    opening = applied(world, OpenBulkSession(bulk_session(table)))
    assert keys.STATE not in [change.key for change in opening.transaction.changes]
    world.commit(opening)
    assert world.group0.commit(step.transaction) is not None


def test_the_end_of_a_bulk_job_is_a_step() -> None:
    world, _ = cluster(2)
    table = world.create_table(2, 1)
    session = bulk_session(table)
    world.commit(applied(world, OpenBulkSession(session)))
    before = world.snapshot.version
    closing = applied(world, CloseSessions((session.id,)))
    assert closing.transaction.conditions == (KeyUnchanged(keys.STATE, world.snapshot.revisions[keys.STATE]),)
    world.commit(closing)
    assert not world.snapshot.sessions
    assert world.snapshot.version == before + 1
    again = applied(world, CloseSessions((session.id,)))
    assert again.transaction.changes == ()
    assert again.snapshot.version == before + 1


def test_a_bulk_job_is_not_opened_again_by_an_attempt_that_was_under_way_when_it_closed() -> None:
    """INV-XFER-1: two attempts at one opening, and the second is committed after all is over."""
    world, _ = cluster(2)
    session = bulk_session(world.create_table(2, 1))
    first, second = (applied(world, OpenBulkSession(session)) for _ in range(2))
    world.commit(first)
    world.commit(applied(world, CloseSessions((session.id,))))
    assert world.group0.commit(second.transaction) is None


def test_a_bulk_job_that_was_closed_is_not_opened_again_even_when_it_is_forgotten() -> None:
    """INV-XFER-1: the last ones are known by their ids, of older ones it is known when they were asked for."""
    world, _ = cluster(2)
    first = bulk_session(world.create_table(2, 1))
    known_version = world.snapshot.version
    world.do(OpenBulkSession(first, known_version))
    world.do(CloseSessions((first.id,)))
    for number in range(BULK_CLOSED_KEPT):
        assert "was closed" in world.refused(OpenBulkSession(first))
        other = Session(
            id=SessionId(uuid.UUID(int=100 + number)),
            kind=SessionKind.BULK_JOB,
            table=first.table,
            deadline_ms=9_000_000,
        )
        world.do(OpenBulkSession(other, known_version))
        world.do(CloseSessions((other.id,)))
    assert len(world.snapshot.state.bulk_closed) == BULK_CLOSED_KEPT
    assert "was closed" in world.refused(OpenBulkSession(first, known_version))
    fresh = Session(id=SessionId(uuid.UUID(int=6)), kind=SessionKind.BULK_JOB, table=first.table, deadline_ms=9_000_000)
    assert "was closed" in world.refused(OpenBulkSession(fresh, known_version)), "it is unknown whether it was closed"
    forgotten_at = world.snapshot.state.bulk_forgotten
    assert known_version < forgotten_at < world.snapshot.version
    world.do(OpenBulkSession(fresh, forgotten_at))  # though others were closed since it was asked for


def test_a_bulk_job_is_not_opened_on_a_table_dropped_meanwhile() -> None:
    world, _ = cluster(2)
    table = world.create_table(2, 1)
    opening = applied(world, OpenBulkSession(bulk_session(table)))
    world.do(DropTable(table))
    assert world.group0.commit(opening.transaction) is None


def test_parts_of_a_generation_depend_on_its_head() -> None:
    world, _ = cluster(1)
    generation = uuid.UUID(int=77)
    part = CdcGenerationPart(())
    first = applied(world, WriteCdcPart(generation=generation, part_count=2, number=0, part=part))
    assert first.transaction.conditions == (KeyMissing(keys.generation_key(generation)),)
    world.commit(first)
    second = applied(world, WriteCdcPart(generation=generation, part_count=2, number=1, part=part))
    assert [change.key for change in second.transaction.changes] == [keys.part_key(generation, 1)]
    assert isinstance(second.transaction.conditions[0], KeyUnchanged)
    assert "parts" in world.refused(WriteCdcPart(generation=generation, part_count=3, number=1, part=part))
    assert "no such part" in world.refused(WriteCdcPart(generation=generation, part_count=2, number=2, part=part))


def test_publishing_does_not_meet_a_step() -> None:
    world, _ = cluster(1)
    (generation,) = world.snapshot.cdc_generations
    marking = applied(world, MarkCdcPublished(generation))
    world.do(SetBalancing(False))
    assert world.group0.commit(marking.transaction) is not None


def stage_change() -> tuple[World, ProposedChange]:
    world, _ = cluster(3)
    table = world.create_table(256, 1)
    new = (Replica(host(3), ShardNumber(0)),)
    world.do(StartMoves((TabletMove(table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=new),)))
    first = TabletAdvance(
        table=table, tablet=0, leaving=TabletStage.ALLOW_WRITE_BOTH_READ_OLD, session=world.new_session()
    )
    world.do(AdvanceTablets((first,), fence=world.snapshot.version))
    to_streaming = TabletAdvance(
        table=table, tablet=0, leaving=TabletStage.WRITE_BOTH_READ_OLD, session=world.new_session()
    )
    return world, applied(world, AdvanceTablets((to_streaming,), fence=world.snapshot.version))


def test_a_stage_change_touches_three_small_keys() -> None:
    _, step = stage_change()
    changes = step.transaction.changes
    assert [change.key.split("/")[1] for change in changes] == ["session", "state", "tablets"]
    assert all(isinstance(change, PutKey) and len(change.value) < 400 for change in changes)


def test_an_applied_snapshot_can_be_followed_up_once_its_revision_is_known() -> None:
    world, step = stage_change()
    entries = world.group0.commit(step.transaction)
    assert entries is not None
    followed = step.at(entries[0].revision)
    again = apply_command(followed, SetBalancing(False))
    assert isinstance(again, ProposedChange)
    assert world.group0.commit(again.transaction) is not None


def test_a_deleted_key_has_no_revision_any_more() -> None:
    world, _ = cluster(2)
    table = world.create_table(2, 1)
    dropping = applied(world, DropTable(table))
    assert any(isinstance(change, DeleteKey) for change in dropping.transaction.changes)
    world.commit(dropping)
    assert keys.table_key(table) not in world.snapshot.revisions

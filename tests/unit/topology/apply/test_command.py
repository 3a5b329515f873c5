"""Several commands as one transaction."""

from tests.unit.topology.world import cluster

from ebla.model.transaction import DeleteKey, PutKey
from ebla.topology import keys
from ebla.topology.apply.command import AFTER_UPGRADE, UNTIL_UPGRADE_TOO, Rejection, apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import Command, DropKeyspace, DropTable, SetBalancing


def test_all_commands_become_true_in_one_commit() -> None:
    world, _ = cluster(3)
    tables = [world.create_table(4, 2, name=name) for name in ("a", "b")]
    before = world.snapshot
    applied = apply_commands(before, [*(DropTable(table) for table in tables), DropKeyspace("ks")])
    assert isinstance(applied, ProposedChange)
    index = world.group0.index
    world.commit(applied)
    assert world.group0.index == index + 1
    assert not world.snapshot.tables
    assert "ks" not in world.snapshot.keyspaces
    assert world.snapshot.version == before.version + 3
    written = [change.key for change in applied.transaction.changes]
    assert written == sorted(set(written)), "each key occurs once"
    assert [type(change) for change in applied.transaction.changes if change.key == keys.STATE] == [PutKey]
    assert all(isinstance(change, DeleteKey) for change in applied.transaction.changes if change.key != keys.STATE)


def test_one_refusal_counts_for_all() -> None:
    world, _ = cluster(3)
    world.create_table(4, 2)
    refused = apply_commands(world.snapshot, [SetBalancing(False), DropKeyspace("ks")])
    assert isinstance(refused, Rejection)
    assert "still has table t" in refused.reason


def test_what_came_in_between_lets_none_through() -> None:
    world, _ = cluster(3)
    table = world.create_table(4, 2)
    applied = apply_commands(world.snapshot, [DropTable(table), DropKeyspace("ks")])
    assert isinstance(applied, ProposedChange)
    world.create_table(4, 2, name="late")
    assert world.group0.commit(applied.transaction) is None


def test_one_command_is_as_it_would_be_alone() -> None:
    world, _ = cluster(1)
    applied = apply_commands(world.snapshot, [SetBalancing(False)])
    assert isinstance(applied, ProposedChange)
    world.commit(applied)
    assert not world.snapshot.state.balancing_enabled


def test_every_kind_of_command_is_applied_by_one_function() -> None:
    kinds = [*UNTIL_UPGRADE_TOO, *AFTER_UPGRADE]
    assert sorted(kinds, key=str) == sorted(Command.__subclasses__(), key=str)

"""Snapshots from rows: whole, by the feed, and from settings."""

import uuid

import msgspec
import pytest
from tests.unit.topology.world import HISTORY, Coordinator, World, host

from ebla.model.errors import Corruption
from ebla.model.identity import TopologyVersion
from ebla.model.transaction import Revision
from ebla.topology import keys
from ebla.topology.commands import DecideResize, DropTable, MarkCdcPublished, RecordRepair, ReportResizeReady
from ebla.topology.explain import from_json, rows_of, to_json
from ebla.topology.invariants import violations
from ebla.topology.keys import encode
from ebla.topology.snapshot import CdcRange, Node, Replication, Snapshot, TopologyState
from ebla.topology.snapshot_builder import FeedEntry, advance, from_group0, from_settings
from ebla.topology.states import NodeRequestKind, NodeState, ResizeType, TransitionState, UpgradeState
from ebla.topology.tablet_map import Resize, TabletStreams

REVISION = Revision(HISTORY, 1)


def busy_world() -> World:
    """With tablets on the move, a request, sessions, CDC data."""
    world = World()
    world.create(world.node(1))
    coordinator = Coordinator(world)
    for number in (2, 3, 4):
        world.ask_to_join(world.node(number))
        coordinator.settle()
    world.create_table(256, 2)
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    for _ in range(4):
        coordinator.step()
    assert world.snapshot.any_tablet_transition
    assert world.snapshot.sessions
    return world


def test_the_rows_of_a_snapshot_make_it_again() -> None:
    snapshot = busy_world().snapshot
    rows = {key: (encode(row), REVISION) for key, row in rows_of(snapshot).items()}
    assert from_group0(rows) == snapshot
    assert from_json(to_json(snapshot)) == snapshot


def test_keys_of_others_are_passed_over_and_unknown_ones_are_damage() -> None:
    assert advance(Snapshot(), [FeedEntry("other/key", b"?", REVISION)]) == Snapshot()
    with pytest.raises(Corruption, match="no key of the topology"):
        advance(Snapshot(), [FeedEntry("topology/what/1", encode(TopologyState()), REVISION)])


@pytest.mark.parametrize("key", ["node/?", "tablets/?/map", "tablets/1", "cdc/?/head", f"cdc/{uuid.UUID(int=1)}/part"])
def test_a_key_that_names_nothing_is_damage(key: str) -> None:
    with pytest.raises(Corruption, match="no key of the topology"):
        advance(Snapshot(), [FeedEntry(keys.PREFIX + key, encode(TopologyState()), REVISION)])


def test_a_row_of_the_wrong_kind_is_damage() -> None:
    with pytest.raises(Corruption, match="stands where Node belongs"):
        advance(Snapshot(), [FeedEntry(keys.node_key(host(1)), encode(TopologyState()), REVISION)])


def test_half_a_tablet_map_is_damage() -> None:
    world = busy_world()
    rows = {key: (encode(row), REVISION) for key, row in rows_of(world.snapshot).items()}
    chunk = next(key for key in rows if "/chunk/00001" in key)
    without = {key: value for key, value in rows.items() if key != chunk}
    with pytest.raises(Corruption, match="1 of 2 chunks are missing"):
        from_group0(without)
    (map_key,) = (key for key in rows if key.endswith("/map"))
    with pytest.raises(Corruption, match="without their map"):
        from_group0({key: value for key, value in rows.items() if key != map_key})


def test_the_state_row_deleted_is_as_if_it_had_never_been() -> None:
    some = Snapshot(state=TopologyState(version=TopologyVersion(9)))
    assert advance(some, [FeedEntry(keys.STATE, None, REVISION)]) == Snapshot()


def settings_of(*nodes: Node) -> dict[str, bytes]:
    return {keys.node_key(node.host): encode(node) for node in nodes}


def normal(number: int, state: NodeState = NodeState.NORMAL) -> Node:
    return World().node(number, state=state, tokens=(number,))


def test_a_snapshot_from_settings_is_like_any_other() -> None:
    made = from_settings(settings_of(normal(1), normal(2)), TopologyVersion(5))
    assert [node.host for node in made.members()] == [host(1), host(2)]
    assert (made.version, made.state.upgrade, made.transition) == (5, UpgradeState.NOT_UPGRADED, None)
    assert violations(made) == ()


def test_from_settings_one_node_moves_at_a_time() -> None:
    joining = (normal(3, NodeState.BOOTSTRAPPING), normal(4, NodeState.BOOTSTRAPPING))
    made = from_settings(settings_of(normal(1), *joining, normal(5, NodeState.DECOMMISSIONING)), TopologyVersion(5))
    assert made.transition is TransitionState.WRITE_BOTH_READ_OLD
    assert made.node(host(3)).state is NodeState.BOOTSTRAPPING
    assert (made.node(host(4)).state, made.node(host(4)).tokens) == (NodeState.NONE, ())
    assert (made.node(host(5)).state, made.node(host(5)).tokens) == (NodeState.NORMAL, (5,))


def test_in_recovery_the_last_rows_stand_and_settings_move_nodes() -> None:
    world = busy_world()
    base = world.snapshot
    gone = msgspec.structs.replace(base.node(host(4)), state=NodeState.LEFT, tokens=())
    entries = {**settings_of(gone), keys.STATE: encode(TopologyState()), "other/key": b"?"}
    made = from_settings(entries, TopologyVersion(base.version + 1), base)
    assert made.node(host(4)).state is NodeState.LEFT
    assert made.transition is TransitionState.TABLET_DRAINING, "data stays where the stage says"
    assert made.tablets == base.tablets
    assert made.version == base.version + 1


def test_in_recovery_too_who_left_stays_left() -> None:
    world = World()
    world.create(world.node(1))
    left = world.node(9, state=NodeState.LEFT)
    base = advance(world.snapshot, [FeedEntry(keys.node_key(left.host), encode(left), REVISION)])
    made = from_settings(settings_of(normal(9)), base.version, base)
    assert made.node(host(9)).state is NodeState.LEFT


def test_a_version_from_settings_never_falls() -> None:
    base = busy_world().snapshot
    with pytest.raises(AssertionError, match="never falls"):
        from_settings({}, TopologyVersion(base.version - 1), base)


def test_a_table_dropped_takes_its_map_along() -> None:
    world = busy_world()
    table = next(iter(world.snapshot.tablets))
    gone = [FeedEntry(key, None, REVISION) for key in world.group0.values if str(table) in key]
    assert advance(world.snapshot, gone).tablets == {}
    assert uuid.UUID(str(table)) == table


APPENDED = ("of a newer release", [1, 2])


def fields_of(value: bytes) -> list[object]:
    fields: list[object] = msgspec.msgpack.decode(value)
    return fields


def append_to_every_row(world: World) -> None:
    """As if a newer release had written them all."""
    for key, (value, revision) in world.group0.values.items():
        world.group0.values[key] = (msgspec.msgpack.encode([*fields_of(value), *APPENDED]), revision)
    world.snapshot = from_group0(world.group0.values)


def test_what_a_newer_release_appended_is_written_back_with_every_kind_of_row() -> None:
    world = busy_world()
    plain = world.snapshot
    append_to_every_row(world)
    assert world.snapshot == plain
    before = dict(world.group0.values)
    (table,) = world.snapshot.tablets
    (generation, *_) = world.snapshot.cdc_generations
    coordinator = Coordinator(world)
    coordinator.step()
    transitions = {key: world.group0.values[key][0] for key in before if "/transition/" in key}
    assert all(tuple(fields_of(value)[-2:]) == APPENDED for value in transitions.values())
    coordinator.settle()
    world.do(RecordRepair(table, ((0, 5),)))
    world.do(MarkCdcPublished(generation))
    world.do(DecideResize(table, ResizeType.SPLIT))
    world.do(ReportResizeReady(table, 1))
    coordinator.settle()
    rewritten = [key for key in before if key in world.group0.values and world.group0.values[key] != before[key]]
    families = {"/".join(key.split("/")[1:2] + key.split("/")[3:4]) for key in rewritten}
    assert families >= {"state", "node", "request", "cdc/head", "tablets/map", "tablets/chunk"}
    for key in rewritten:
        assert tuple(fields_of(world.group0.values[key][0])[-2:]) == APPENDED, key
    assert world.snapshot.tablets[table].tablet_count == 512


def test_a_row_made_anew_does_not_inherit_what_was_appended_to_one_that_is_gone() -> None:
    world = busy_world()
    append_to_every_row(world)
    (table,) = world.snapshot.tablets
    assert keys.map_key(table) in world.snapshot.unknown_fields
    world.do(DropTable(table))
    assert keys.map_key(table) not in world.snapshot.unknown_fields
    assert keys.STATE in world.snapshot.unknown_fields


def test_structs_inside_rows_do_not_grow() -> None:
    """What an older release does not know of them it would lose."""
    assert Replication.__struct_fields__ == ("strategy", "factors")
    assert Resize.__struct_fields__ == ("kind", "number", "ready")
    assert TabletStreams.__struct_fields__ == ("timestamp_ms", "tablet_count", "mark")
    assert CdcRange.__struct_fields__ == ("range_end", "streams", "ignore_msb")

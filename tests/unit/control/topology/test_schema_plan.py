"""What schema requests lead to, and why some are rejected."""

import uuid

import msgspec
import pytest
from tests.unit.topology.world import Coordinator, World, cluster

from ebla.control.topology import schema_plan
from ebla.control.topology.schema_plan import (
    NotYetPossible,
    SchemaChangePlan,
    is_applied,
    plan_schema_change,
)
from ebla.model.cql_types import parse_type
from ebla.model.errors import AlreadyExists, EblaError, InvalidRequest, NotFound, Refused, Unavailable
from ebla.model.identity import TableId
from ebla.model.schema import Column, ColumnKind, TableOptions, TableSchema, decode_schema
from ebla.topology.apply.command import apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import CreateKeyspace, CreateTable, DropKeyspace, DropTable
from ebla.topology.snapshot import Keyspace, Replication, Snapshot
from ebla.topology.states import Strategy
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX
from ebla.wire.schema_messages import (
    AlterKeyspaceRequest,
    AlterTableRequest,
    CreateKeyspaceRequest,
    CreateTableRequest,
    DropKeyspaceRequest,
    DropTableRequest,
    SchemaChange,
    TruncateTableRequest,
)

KEY = Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY)
VALUE = Column(name="v", type=parse_type("text"), kind=ColumnKind.REGULAR)
COLUMNS = (KEY, VALUE)


def drawn(number: int = 1) -> TableId:
    return TableId(uuid.UUID(int=number))


def network(factor: int = 2, datacenter: str = "dc1") -> Replication:
    return Replication(Strategy.NETWORK_TOPOLOGY, ((datacenter, factor),))


def simple(factor: int = 2) -> Replication:
    return Replication(Strategy.SIMPLE, (("", factor),))


def tablets(name: str = "ks", replication: Replication | None = None) -> Keyspace:
    return Keyspace(name=name, replication=replication or network(), on_tablets=True)


def vnodes(name: str = "ks", replication: Replication | None = None) -> Keyspace:
    return Keyspace(name=name, replication=replication or network(), on_tablets=False)


def table(
    keyspace: str, name: str, columns: tuple[Column, ...], options: TableOptions | None = None
) -> CreateTableRequest:
    return CreateTableRequest(keyspace=keyspace, name=name, columns=columns, options=options or TableOptions())


def fulfil(world: World, change: SchemaChange, number: int = 1) -> SchemaChangePlan:
    """Commits the planned commands; the world checks every commit."""
    planned = plan_schema_change(change, world.snapshot, drawn(number))
    applied = apply_commands(world.snapshot, planned.commands)
    assert isinstance(applied, ProposedChange)
    world.commit(applied)
    assert is_applied(planned.commands, world.snapshot)
    return planned


def refusal(snapshot: Snapshot, change: SchemaChange) -> EblaError:
    with pytest.raises((EblaError, NotYetPossible)) as caught:
        plan_schema_change(change, snapshot, drawn(99))
    error = caught.value
    return error.error if isinstance(error, NotYetPossible) else error  # type: ignore[return-value]  # one of the two


def with_table(keyspace: Keyspace | None = None) -> World:
    world, _ = cluster(3)
    fulfil(world, CreateKeyspaceRequest(keyspace or tablets()))
    fulfil(world, CreateTableRequest(keyspace="ks", name="t", columns=COLUMNS))
    return world


def schema_of(world: World, number: int = 1) -> TableSchema:
    return decode_schema(world.snapshot.tables[drawn(number)].definition)


# ---- requests that succeed


def test_a_table_on_tablets_gets_its_replicas_at_once() -> None:
    world = with_table()
    placed = world.snapshot.tablets[drawn()]
    assert {len(replicas) for replicas in placed.replica_sets()} == {2}
    assert schema_of(world).full_name == "ks.t"


def test_a_table_on_vnodes_has_no_tablets() -> None:
    assert not with_table(vnodes()).snapshot.tablets


def test_the_number_of_tablets_can_be_asked_for() -> None:
    world, _ = cluster(3)
    fulfil(world, CreateKeyspaceRequest(tablets()))
    fulfil(world, CreateTableRequest(keyspace="ks", name="t", columns=COLUMNS, min_tablet_count=64))
    assert world.snapshot.tablets[drawn()].tablet_count == 64


def test_factors_may_come_in_any_order() -> None:
    world = World()
    world.create(world.node(1))
    world.ask_to_join(world.node(2, datacenter="aa"))
    Coordinator(world).settle()
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1), ("aa", 1)))
    fulfil(world, CreateKeyspaceRequest(tablets(replication=replication)))
    assert world.snapshot.keyspaces["ks"].replication.factors == (("aa", 1), ("dc1", 1))


def test_an_altered_table_keeps_what_is_not_named() -> None:
    world = with_table()
    added = Column(name="w", type=parse_type("int"), kind=ColumnKind.REGULAR)
    options = TableOptions(gc_grace_s=1)
    change = AlterTableRequest(
        keyspace="ks", name="t", added=(added,), dropped=("v",), options=options, renamed=(("k", "id"),)
    )
    assert fulfil(world, change).table == drawn()
    schema = schema_of(world)
    assert [one.name for one in schema.columns] == ["id", "w"]
    assert schema.options == options
    assert schema.version == 5


@pytest.mark.parametrize("keyspace", [tablets(), vnodes()])
def test_a_truncated_table_goes_on_under_another_id(keyspace: Keyspace) -> None:
    world = with_table(keyspace)
    before = schema_of(world)
    fulfil(world, TruncateTableRequest("ks", "t"), 2)
    assert drawn() not in world.snapshot.tables
    assert schema_of(world, 2) == msgspec.structs.replace(before, id=drawn(2))
    assert (drawn(2) in world.snapshot.tablets) is keyspace.on_tablets


def test_a_table_that_is_not_there_is_not_truncated() -> None:
    assert isinstance(refusal(with_table().snapshot, TruncateTableRequest("ks", "other")), NotFound)


def test_a_keyspace_goes_with_its_tables_in_one_commit() -> None:
    world = with_table()
    fulfil(world, CreateTableRequest(keyspace="ks", name="u", columns=COLUMNS), 2)
    planned = fulfil(world, DropKeyspaceRequest("ks"))
    assert planned.commands == (DropTable(drawn(1)), DropTable(drawn(2)), DropKeyspace("ks"))
    assert not planned.more
    assert not world.snapshot.tables
    assert not world.snapshot.keyspaces


def test_a_keyspace_of_many_keys_goes_in_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_table()
    for number in (2, 3):
        fulfil(world, CreateTableRequest(keyspace="ks", name=f"t{number}", columns=COLUMNS), number)
    monkeypatch.setattr(schema_plan, "KEYS_PER_COMMIT_MAX", 7)
    commits = [fulfil(world, DropKeyspaceRequest("ks")) for _ in range(2)]
    assert [planned.more for planned in commits] == [True, False]
    assert commits[0].commands == (DropTable(drawn(1)), DropTable(drawn(2)))
    assert not world.snapshot.keyspaces


def test_a_keyspace_on_vnodes_takes_other_factors() -> None:
    world = with_table(vnodes())
    fulfil(world, AlterKeyspaceRequest(vnodes(replication=network(3))))
    assert world.snapshot.keyspaces["ks"].replication == network(3)


def test_a_keyspace_on_tablets_takes_other_options() -> None:
    world = with_table()
    fulfil(world, AlterKeyspaceRequest(msgspec.structs.replace(tablets(), durable_writes=False)))
    assert not world.snapshot.keyspaces["ks"].durable_writes


def test_what_is_so_already_changes_nothing() -> None:
    seen = with_table().snapshot
    assert (
        plan_schema_change(CreateKeyspaceRequest(tablets(), if_not_exists=True), seen, drawn(9)) == SchemaChangePlan()
    )
    assert plan_schema_change(
        CreateTableRequest(keyspace="ks", name="t", columns=(), if_not_exists=True), seen, drawn(9)
    ) == SchemaChangePlan(table=drawn())
    assert plan_schema_change(DropTableRequest("ks", "u", if_exists=True), seen, drawn(9)) == SchemaChangePlan()
    assert plan_schema_change(DropTableRequest("no", "u", if_exists=True), seen, drawn(9)) == SchemaChangePlan()
    assert plan_schema_change(DropKeyspaceRequest("no", if_exists=True), seen, drawn(9)) == SchemaChangePlan()
    assert plan_schema_change(AlterKeyspaceRequest(tablets()), seen, drawn(9)) == SchemaChangePlan()


# ---- why not

CREATE = CreateKeyspaceRequest
TWO = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1), ("dc1", 2)))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (CREATE(tablets("")), InvalidRequest, "'' is not a valid name for a keyspace"),
        (CREATE(tablets("a-b")), InvalidRequest, "letters, digits and underscores"),
        (CREATE(tablets("k" * 49)), InvalidRequest, "1 to 48"),
        (CREATE(tablets("system")), InvalidRequest, "reserved"),
        (CREATE(tablets("System_x"), if_not_exists=True), InvalidRequest, "reserved"),
        (CREATE(tablets("ks")), AlreadyExists, "keyspace ks exists already"),
        (CREATE(tablets("new", simple())), InvalidRequest, "tablets need NetworkTopologyStrategy"),
        (CREATE(vnodes("new", network(1, "dc9"))), InvalidRequest, "no node in datacenter 'dc9'; datacenters are: dc1"),
        (CREATE(tablets("new", network(1, ""))), InvalidRequest, "no node in datacenter ''"),
        (CREATE(tablets("new", network(4))), InvalidRequest, "replication factor 4 .* dc1, which has 3"),
        (CREATE(vnodes("new", network(0))), InvalidRequest, "needs at least one replica"),
        (CREATE(vnodes("new", Replication(Strategy.NETWORK_TOPOLOGY, ()))), InvalidRequest, "at least one replica"),
        (CREATE(vnodes("new", simple(0))), InvalidRequest, "needs at least one replica"),
        (CREATE(vnodes("new", network(-1))), InvalidRequest, "not be negative"),
        (CREATE(vnodes("new", TWO)), InvalidRequest, "dc1 has two replication factors"),
        (
            CREATE(vnodes("new", Replication(Strategy.SIMPLE, (("dc1", 1),)))),
            InvalidRequest,
            "SimpleStrategy has one replication factor and names no datacenter",
        ),
        (CREATE(msgspec.structs.replace(tablets("new"), initial_tablets=-1)), InvalidRequest, "at most 16384"),
        (AlterKeyspaceRequest(tablets("no")), NotFound, "there is no keyspace no"),
        (AlterKeyspaceRequest(tablets("system")), InvalidRequest, "reserved"),
        (AlterKeyspaceRequest(vnodes()), InvalidRequest, "stays on tablets"),
        (AlterKeyspaceRequest(tablets(replication=network(3))), Refused, "does not move tablets"),
        (DropKeyspaceRequest("no"), NotFound, "there is no keyspace no"),
        (DropKeyspaceRequest("system", if_exists=True), InvalidRequest, "reserved"),
        (table("ks", "a b", COLUMNS), InvalidRequest, "'a b' is not a valid name for a table"),
        (table("system", "t", COLUMNS), InvalidRequest, "reserved"),
        (table("no", "t", COLUMNS), NotFound, "there is no keyspace no"),
        (table("ks", "t", COLUMNS), AlreadyExists, "table ks.t exists already"),
        (table("ks", "u", (VALUE,)), InvalidRequest, "needs a primary key"),
        (table("ks", "u", (KEY, VALUE, VALUE)), InvalidRequest, "declared twice"),
        (table("ks", "u", COLUMNS, TableOptions(gc_grace_s=-1)), InvalidRequest, "gc_grace_seconds"),
        (CreateTableRequest(keyspace="ks", name="u", columns=COLUMNS, min_tablet_count=-1), InvalidRequest, "at most"),
        (
            CreateTableRequest(keyspace="ks", name="u", columns=COLUMNS, min_tablet_count=TABLETS_PER_COMMIT_MAX + 1),
            InvalidRequest,
            "at most 16384",
        ),
        (AlterTableRequest(keyspace="ks", name="no", dropped=("v",)), NotFound, "there is no table ks.no"),
        (AlterTableRequest(keyspace="no", name="t", dropped=("v",)), NotFound, "there is no keyspace no"),
        (AlterTableRequest(keyspace="system", name="t", dropped=("v",)), InvalidRequest, "reserved"),
        (AlterTableRequest(keyspace="ks", name="t"), InvalidRequest, "nothing of table ks.t"),
        (AlterTableRequest(keyspace="ks", name="t", dropped=("no",)), NotFound, "no column 'no'"),
        (AlterTableRequest(keyspace="ks", name="t", dropped=("k",)), InvalidRequest, "cannot be dropped"),
        (AlterTableRequest(keyspace="ks", name="t", added=(VALUE,)), InvalidRequest, "declared twice"),
        (AlterTableRequest(keyspace="ks", name="t", renamed=(("v", "w"),)), InvalidRequest, "not part of the key"),
        (
            AlterTableRequest(keyspace="ks", name="t", options=TableOptions(default_ttl_s=-1)),
            InvalidRequest,
            "default_time_to_live",
        ),
        (DropTableRequest("ks", "no"), NotFound, "there is no table ks.no"),
        (DropTableRequest("no", "t"), NotFound, "there is no keyspace no"),
        (DropTableRequest("system", "local", if_exists=True), InvalidRequest, "reserved"),
    ],
)
def test_an_impossible_request_says_why(change: SchemaChange, kind: type[EblaError], words: str) -> None:
    error = refusal(with_table().snapshot, change)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


def test_names_that_exist_travel_with_the_error() -> None:
    error = refusal(with_table().snapshot, table("ks", "t", COLUMNS))
    assert isinstance(error, AlreadyExists)
    assert (error.keyspace, error.table) == ("ks", "t")


def test_replicas_that_no_longer_have_room_are_counted_at_creation_too() -> None:
    world, _ = cluster(3)
    fulfil(world, CREATE(tablets(replication=network(3))))
    nodes = dict(world.snapshot.nodes)
    gone = next(iter(nodes))
    snapshot = msgspec.structs.replace(world.snapshot.state, ignored_nodes=(gone,))
    error = refusal(_with_state(world.snapshot, snapshot), table("ks", "t", COLUMNS))
    assert "replication factor 3" in error.message
    assert "which has 2" in error.message


def _with_state(snapshot: Snapshot, state: object) -> Snapshot:
    values = {name: getattr(snapshot, name) for name in Snapshot.__slots__}
    return Snapshot(**{**values, "state": state})


# ---- not yet


def test_without_a_node_in_the_ring_there_is_no_schema() -> None:
    with pytest.raises(NotYetPossible) as caught:
        plan_schema_change(CREATE(tablets()), Snapshot(), drawn())
    assert isinstance(caught.value.error, Unavailable)


def test_tables_are_created_while_a_node_joins_and_replication_on_vnodes_is_not_changed() -> None:
    world = World()
    world.create(world.node(1))
    fulfil(world, CREATE(vnodes("old", simple(1))))
    world.ask_to_join(world.node(2))
    Coordinator(world).step()
    fulfil(world, table("old", "t", COLUMNS))
    with pytest.raises(NotYetPossible, match=r"at 127\.0\.0\.2, in join_group0"):
        plan_schema_change(AlterKeyspaceRequest(vnodes("old", simple(2))), world.snapshot, drawn(2))
    Coordinator(world).settle()
    fulfil(world, AlterKeyspaceRequest(vnodes("old", simple(2))), 2)


def test_a_factor_waits_for_the_nodes_that_are_about_to_be_enough() -> None:
    world = World()
    world.create(world.node(1))
    world.ask_to_join(world.node(2))
    with pytest.raises(NotYetPossible, match="which has 1"):
        plan_schema_change(CREATE(tablets(replication=network(2))), world.snapshot, drawn())
    with pytest.raises(InvalidRequest, match="which has 1"):
        plan_schema_change(CREATE(tablets(replication=network(3))), world.snapshot, drawn())


# ---- after a commit without an answer


def test_whether_a_change_is_there_shows_in_the_schema() -> None:
    world = with_table()
    other = world.snapshot
    created = plan_schema_change(table("ks", "u", COLUMNS), other, drawn(2)).commands
    altered = plan_schema_change(AlterTableRequest(keyspace="ks", name="t", dropped=("v",)), other, drawn(3)).commands
    dropped = plan_schema_change(DropKeyspaceRequest("ks"), other, drawn(4)).commands
    keyspace = plan_schema_change(CREATE(tablets("more")), other, drawn(5)).commands
    for commands in (created, altered, dropped, keyspace):
        assert not is_applied(commands, world.snapshot)
    fulfil(world, table("ks", "u", COLUMNS), 7)
    assert not is_applied(created, world.snapshot), "another table of that name"
    assert isinstance(created[0], CreateTable)
    assert isinstance(keyspace[0], CreateKeyspace)

"""Turns a schema request into topology commands, or into the error that says why not. Pure."""

import re
from dataclasses import dataclass
from typing import assert_never

import msgspec

from ebla.model.errors import AlreadyExists, EblaError, InvalidRequest, NotFound, Refused, Unavailable
from ebla.model.identity import TableId
from ebla.model.schema import (
    KEYSPACE_NAME_CHARACTERS_MAX,
    TABLE_NAME_CHARACTERS_MAX,
    TableSchema,
    decode_schema,
    encode_schema,
    new_schema,
    with_column,
    with_options,
    with_renamed_column,
    without_column,
)
from ebla.topology.commands import (
    AlterKeyspace,
    AlterTable,
    Command,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
)
from ebla.topology.placement import Capacities, PlacementRules, place_new_table, placeable_nodes
from ebla.topology.snapshot import Keyspace, Replication, Snapshot, Table
from ebla.topology.states import NodeState, Strategy, UpgradeState
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, ReplicaSet
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

NAME = re.compile(r"\w+", re.ASCII)
NAME_CHARACTERS_MAX = {"keyspace": KEYSPACE_NAME_CHARACTERS_MAX, "table": TABLE_NAME_CHARACTERS_MAX}
RESERVED = "system"
KEYS_PER_COMMIT_MAX = 4_096
"""Keys that one commit deletes. Dropping a keyspace with more takes several."""


@dataclass(frozen=True, slots=True)
class SchemaChangePlan:
    """Committed together. No commands: the schema is already as requested."""

    commands: tuple[Command, ...] = ()
    table: TableId | None = None
    more: bool = False
    """This is one part; the rest is planned on the result."""


class NotYetPossible(Exception):
    """Not possible now, but maybe soon. `error` is for a caller that does not wait or has waited too long."""

    def __init__(self, error: EblaError) -> None:
        super().__init__(str(error))
        self.error = error


def plan_schema_change(request: SchemaChange, snapshot: Snapshot, new_id: TableId) -> SchemaChangePlan:
    """`new_id`: the id of a table to be created, a new one for each attempt. Raises an error that says why not, or
    `NotYetPossible`."""
    if snapshot.state.upgrade is not UpgradeState.DONE:
        raise NotYetPossible(Unavailable("the cluster has no node in its ring yet", advice="try again in a moment"))
    match request:
        case CreateKeyspaceRequest():
            return _create_keyspace(request, snapshot)
        case AlterKeyspaceRequest():
            return _alter_keyspace(request, snapshot)
        case DropKeyspaceRequest():
            return _drop_keyspace(request, snapshot)
        case CreateTableRequest():
            return _create_table(request, snapshot, new_id)
        case AlterTableRequest():
            return _alter_table(request, snapshot)
        case DropTableRequest():
            return _drop_table(request, snapshot)
        case TruncateTableRequest():
            return _truncate_table(request, snapshot, new_id)
        case _:
            assert_never(request)


# ---- keyspaces


def _create_keyspace(request: CreateKeyspaceRequest, snapshot: Snapshot) -> SchemaChangePlan:
    keyspace = _in_order(request.keyspace)
    _check_name(keyspace.name, "keyspace")
    _check_not_reserved(keyspace.name)
    if keyspace.name in snapshot.keyspaces:
        if request.if_not_exists:
            return SchemaChangePlan()
        raise AlreadyExists(f"keyspace {keyspace.name} exists already", keyspace=keyspace.name)
    _check_keyspace(snapshot, keyspace)
    return SchemaChangePlan((CreateKeyspace(keyspace),))


def _alter_keyspace(request: AlterKeyspaceRequest, snapshot: Snapshot) -> SchemaChangePlan:
    keyspace = _in_order(request.keyspace)
    _check_not_reserved(keyspace.name)
    known = _keyspace(snapshot, keyspace.name)
    if known == keyspace:
        return SchemaChangePlan()
    if known.on_tablets != keyspace.on_tablets:
        raise InvalidRequest(f"keyspace {keyspace.name} stays on {'tablets' if known.on_tablets else 'vnodes'}")
    if known.on_tablets and known.replication != keyspace.replication:
        raise Refused(
            f"replicas of keyspace {keyspace.name}, which is on tablets, would have to move, and this release does not "
            "move tablets",
            advice="create a keyspace with the other replication",
        )
    if known.replication != keyspace.replication and (operation := snapshot.running_operation):
        # The streams of the operation were planned by the old replication.
        raise NotYetPossible(
            Refused(
                f"the replication of keyspace {keyspace.name} cannot change now: {operation}",
                advice="try again when it has ended, see `ebla topology`",
            )
        )
    _check_keyspace(snapshot, keyspace)
    return SchemaChangePlan((AlterKeyspace(keyspace),))


def _drop_keyspace(request: DropKeyspaceRequest, snapshot: Snapshot) -> SchemaChangePlan:
    """Its tables first: a table cannot exist without its keyspace."""
    _check_not_reserved(request.name)
    if request.name not in snapshot.keyspaces:
        if request.if_exists:
            return SchemaChangePlan()
        raise NotFound(f"there is no keyspace {request.name}")
    drops: list[Command] = []
    keys = 0
    for table in _tables_of(snapshot, request.name):
        tablets = snapshot.tablets.get(table)
        keys += 2 if tablets is None else 2 + len(tablets.chunks)
        if drops and keys > KEYS_PER_COMMIT_MAX:
            return SchemaChangePlan(tuple(drops), more=True)
        drops.append(DropTable(table))
    return SchemaChangePlan((*drops, DropKeyspace(request.name)))


def _tables_of(snapshot: Snapshot, keyspace: str) -> list[TableId]:
    return sorted(table.id for table in snapshot.tables.values() if table.keyspace == keyspace)


def _in_order(keyspace: Keyspace) -> Keyspace:
    replication = keyspace.replication
    factors = tuple(sorted(replication.factors))
    return msgspec.structs.replace(keyspace, replication=msgspec.structs.replace(replication, factors=factors))


def _check_keyspace(snapshot: Snapshot, keyspace: Keyspace) -> None:
    replication = keyspace.replication
    names = [name for name, _ in replication.factors]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"datacenter {twice} has two replication factors")
    if any(factor < 0 for _, factor in replication.factors):
        raise InvalidRequest("a replication factor must not be negative")
    if not 0 <= keyspace.initial_tablets <= TABLETS_PER_COMMIT_MAX:
        raise InvalidRequest(f"a table starts with at most {TABLETS_PER_COMMIT_MAX} tablets")
    if replication.strategy is Strategy.SIMPLE:
        if keyspace.on_tablets:
            raise InvalidRequest("tablets need NetworkTopologyStrategy", advice="or put the keyspace on vnodes")
        if names != [""]:
            raise InvalidRequest("SimpleStrategy has one replication factor and names no datacenter")
    else:
        _check_datacenters(snapshot, names)
    if replication.total == 0:
        raise InvalidRequest("a keyspace needs at least one replica: all its replication factors are 0")
    if keyspace.on_tablets:
        _check_room(snapshot, replication)


def _check_datacenters(snapshot: Snapshot, names: list[str]) -> None:
    known = sorted({node.datacenter for node in snapshot.members()})
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InvalidRequest(f"there is no node in datacenter {unknown!r}; datacenters are: {', '.join(known)}")


def _check_room(snapshot: Snapshot, replication: Replication) -> None:
    """Replicas of a tablet are on distinct nodes. Wait for nodes that are about to join."""
    nodes = list(placeable_nodes(snapshot))
    for name, factor in replication.factors:
        count = sum(node.datacenter == name for node in nodes)
        if factor <= count:
            continue
        error = InvalidRequest(
            f"replication factor {factor} needs as many nodes in datacenter {name}, which has {count}",
            advice="add nodes, lower the factor, or put the keyspace on vnodes",
        )
        joining = sum(node.datacenter == name for node in snapshot.nodes_in(NodeState.NONE, NodeState.BOOTSTRAPPING))
        if factor <= count + joining:
            raise NotYetPossible(error)
        raise error


# ---- tables


def _create_table(request: CreateTableRequest, snapshot: Snapshot, new_id: TableId) -> SchemaChangePlan:
    _check_name(request.name, "table")
    _check_not_reserved(request.keyspace)
    keyspace = _keyspace(snapshot, request.keyspace)
    known = snapshot.table_named(request.keyspace, request.name)
    if known is not None:
        if request.if_not_exists:
            return SchemaChangePlan(table=known.id)
        raise AlreadyExists(f"table {known.full_name} exists already", keyspace=request.keyspace, table=request.name)
    if not 0 <= request.min_tablet_count <= TABLETS_PER_COMMIT_MAX:
        raise InvalidRequest(f"a table has at most {TABLETS_PER_COMMIT_MAX} tablets at first")
    schema = new_schema(new_id, request.keyspace, request.name, request.columns, request.options)
    table = Table(
        id=new_id,
        keyspace=request.keyspace,
        name=request.name,
        cdc=False,
        min_tablet_count=request.min_tablet_count,
        definition=encode_schema(schema),
    )
    if not keyspace.on_tablets:
        return SchemaChangePlan((CreateTable(table),), new_id)
    _check_room(snapshot, keyspace.replication)
    replica_sets = place_new_table(snapshot, table, Capacities(), PlacementRules())
    return SchemaChangePlan((CreateTable(table, replica_sets),), new_id)


def _alter_table(request: AlterTableRequest, snapshot: Snapshot) -> SchemaChangePlan:
    table = _table(snapshot, request.keyspace, request.name)
    before = decode_schema(table.definition)
    after = _altered(request, before)
    if after is before:
        raise InvalidRequest(f"the statement alters nothing of table {table.full_name}")
    return SchemaChangePlan((AlterTable(msgspec.structs.replace(table, definition=encode_schema(after))),), table.id)


def _altered(request: AlterTableRequest, schema: TableSchema) -> TableSchema:
    for name in request.dropped:
        schema = without_column(schema, name)
    for column in request.added:
        schema = with_column(schema, column)
    for old, new in request.renamed:
        schema = with_renamed_column(schema, old, new)
    return schema if request.options is None else with_options(schema, request.options)


def _drop_table(request: DropTableRequest, snapshot: Snapshot) -> SchemaChangePlan:
    if request.if_exists and snapshot.table_named(request.keyspace, request.name) is None:
        _check_not_reserved(request.keyspace)
        return SchemaChangePlan()
    table = _table(snapshot, request.keyspace, request.name)
    return SchemaChangePlan((DropTable(table.id),), table.id)


def _truncate_table(request: TruncateTableRequest, snapshot: Snapshot, new_id: TableId) -> SchemaChangePlan:
    """The same table under a new id, in one commit: a late write to the old id finds no table. Its tablets are placed
    again, since no data has to move."""
    table = _table(snapshot, request.keyspace, request.name)
    schema = msgspec.structs.replace(decode_schema(table.definition), id=new_id)
    fresh = msgspec.structs.replace(table, id=new_id, definition=encode_schema(schema))
    replica_sets: tuple[ReplicaSet, ...] = ()
    if snapshot.on_tablets(table.id):
        replica_sets = place_new_table(snapshot, fresh, Capacities(), PlacementRules())
    return SchemaChangePlan((DropTable(table.id), CreateTable(fresh, replica_sets)), new_id)


# ---- around the commit


def needs_barrier(commands: tuple[Command, ...], snapshot: Snapshot) -> bool:
    """Whether they give ranges to nodes and take others: then every node must have followed all changes before."""
    return any(
        command.keyspace.replication != snapshot.keyspaces[command.keyspace.name].replication
        for command in commands
        if isinstance(command, AlterKeyspace)
    )


def is_applied(commands: tuple[Command, ...], snapshot: Snapshot) -> bool:
    """Whether the schema is as these commands leave it. A created table's id proves that it was this commit. For all
    else another client may have made the same change at the same time, which is equivalent."""
    return all(_is_command_applied(command, snapshot) for command in commands)


def _is_command_applied(command: Command, snapshot: Snapshot) -> bool:
    match command:
        case CreateKeyspace(keyspace=keyspace) | AlterKeyspace(keyspace=keyspace):
            return snapshot.keyspaces.get(keyspace.name) == keyspace
        case DropKeyspace(name=name):
            return name not in snapshot.keyspaces
        case CreateTable(table=table) | AlterTable(table=table):
            return snapshot.tables.get(table.id) == table
        case DropTable(table=dropped):
            return dropped not in snapshot.tables
        case _:
            raise AssertionError(f"{type(command).__name__} is not a schema command")


# ---- shared checks


def _keyspace(snapshot: Snapshot, name: str) -> Keyspace:
    known = snapshot.keyspaces.get(name)
    if known is None:
        raise NotFound(f"there is no keyspace {name}")
    return known


def _table(snapshot: Snapshot, keyspace: str, name: str) -> Table:
    _check_not_reserved(keyspace)
    _keyspace(snapshot, keyspace)
    known = snapshot.table_named(keyspace, name)
    if known is None:
        raise NotFound(f"there is no table {keyspace}.{name}")
    return known


def _check_name(name: str, what: str) -> None:
    most = NAME_CHARACTERS_MAX[what]
    if NAME.fullmatch(name) is None or len(name) > most:
        raise InvalidRequest(f"{name!r} is not a valid name for a {what}: 1 to {most} letters, digits and underscores")


def _check_not_reserved(keyspace: str) -> None:
    if keyspace.lower().startswith(RESERVED):
        raise InvalidRequest(f"keyspace {keyspace} belongs to the system: names that begin so are reserved")

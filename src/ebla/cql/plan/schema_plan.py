"""Turns schema statements into schema changes for the control process, with table and keyspace options. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ebla.cql.catalog import Catalog, keyspace_of
from ebla.cql.parse.statements import (
    AlterKeyspaceStatement,
    AlterTableStatement,
    ColumnDefinition,
    CreateKeyspaceStatement,
    CreateTableStatement,
    DropKeyspaceStatement,
    DropTableStatement,
    Properties,
    PropertyValue,
    SchemaStatement,
)
from ebla.cql.plan.table_options import is_number, table_options
from ebla.model.cql_types import is_multi_cell
from ebla.model.errors import BadConfiguration, InvalidRequest
from ebla.model.schema import Column, ColumnKind, TableOptions, TableSchema
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.cql.messages import SchemaChangeKind, SchemaChangeResult
from ebla.wire.schema_messages import (
    AlterKeyspaceRequest,
    AlterTableRequest,
    CreateKeyspaceRequest,
    CreateTableRequest,
    DropKeyspaceRequest,
    DropTableRequest,
    SchemaChange,
)

_STRATEGIES = {
    "SimpleStrategy": Strategy.SIMPLE,
    "NetworkTopologyStrategy": Strategy.NETWORK_TOPOLOGY,
    "org.apache.cassandra.locator.SimpleStrategy": Strategy.SIMPLE,
    "org.apache.cassandra.locator.NetworkTopologyStrategy": Strategy.NETWORK_TOPOLOGY,
}
_FACTOR = "replication_factor"
_KEYSPACE_OPTIONS = ("replication", "durable_writes", "tablets")


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    request: SchemaChange
    change: SchemaChangeResult


def plan_schema(statement: SchemaStatement, catalog: Catalog, session_keyspace: str | None) -> SchemaPlan | None:
    """None if IF EXISTS leaves nothing to do."""
    match statement:
        case CreateKeyspaceStatement(name=name, if_not_exists=lenient):
            keyspace = _keyspace(name, statement.properties, catalog, None)
            change = SchemaChangeResult(SchemaChangeKind.CREATED, name)
            return SchemaPlan(CreateKeyspaceRequest(keyspace, lenient), change)
        case AlterKeyspaceStatement(name=name, if_exists=True) if name not in catalog.view.snapshot.keyspaces:
            return None
        case AlterKeyspaceStatement(name=name):
            keyspace = _keyspace(name, statement.properties, catalog, catalog.keyspace(name))
            return SchemaPlan(AlterKeyspaceRequest(keyspace), SchemaChangeResult(SchemaChangeKind.UPDATED, name))
        case DropKeyspaceStatement(name=name, if_exists=lenient):
            return SchemaPlan(DropKeyspaceRequest(name, lenient), SchemaChangeResult(SchemaChangeKind.DROPPED, name))
        case CreateTableStatement():
            return _create_table(statement, catalog, session_keyspace)
        case AlterTableStatement(table=table, if_exists=True) if not catalog.has_table(table, session_keyspace):
            return None
        case AlterTableStatement():
            return _alter_table(statement, catalog, session_keyspace)
        case DropTableStatement(table=table, if_exists=lenient):
            name = keyspace_of(table, session_keyspace)
            change = SchemaChangeResult(SchemaChangeKind.DROPPED, name, table.name)
            return SchemaPlan(DropTableRequest(name, table.name, lenient), change)


# ---- keyspaces


def _keyspace(name: str, properties: Properties, catalog: Catalog, before: Keyspace | None) -> Keyspace:
    for option, _ in properties.items:
        if option not in _KEYSPACE_OPTIONS:
            raise BadConfiguration(f"Unknown property '{option}'")
    value = properties.get("replication")
    if value is None and before is None:
        raise BadConfiguration("Missing mandatory replication strategy class")
    durable_before = before is None or before.durable_writes
    durable = _boolean(properties.get("durable_writes"), "durable_writes", default=durable_before)
    on_tablets, initial = _tablets(properties.get("tablets"))
    if before is not None:
        if on_tablets not in (None, before.on_tablets):
            raise InvalidRequest("a keyspace cannot be altered from tablets to vnodes or back")
        replication = before.replication if value is None else _replication(value, catalog)
        return msgspec.structs.replace(
            before,
            replication=replication,
            durable_writes=durable,
            initial_tablets=before.initial_tablets if initial is None else initial,
        )
    assert value is not None
    replication = _replication(value, catalog)
    if on_tablets is None:
        on_tablets = replication.strategy is Strategy.NETWORK_TOPOLOGY
    elif on_tablets and replication.strategy is Strategy.SIMPLE:
        raise BadConfiguration("SimpleStrategy does not support tablet replication: use NetworkTopologyStrategy")
    return Keyspace(
        name=name, replication=replication, on_tablets=on_tablets, initial_tablets=initial or 0, durable_writes=durable
    )


def _replication(value: PropertyValue, catalog: Catalog) -> Replication:
    if isinstance(value, str):
        raise BadConfiguration("replication is a map such as {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
    options = dict(value)
    name = options.pop("class", None)
    if name is None:
        raise BadConfiguration("Missing mandatory replication strategy class")
    strategy = _STRATEGIES.get(name)
    if strategy is None:
        raise BadConfiguration(f"Unable to find replication strategy class '{name}'")
    if strategy is Strategy.SIMPLE:
        factor = options.pop(_FACTOR, None)
        if factor is None:
            raise BadConfiguration("SimpleStrategy requires a replication_factor strategy option.")
        if options:
            raise BadConfiguration(f"Unrecognized strategy option {next(iter(options))} passed to SimpleStrategy")
        return Replication(strategy, (("", _factor(factor)),))
    return Replication(strategy, _factors(options, catalog))


def _factors(options: Mapping[str, str], catalog: Catalog) -> tuple[tuple[str, int], ...]:
    datacenters = {node.datacenter for node in catalog.view.snapshot.members()}
    factors: dict[str, int] = {}
    if _FACTOR in options:
        # Applies to every current datacenter; those named separately have their own factor.
        factors = dict.fromkeys(sorted(datacenters), _factor(options[_FACTOR]))
    for name, factor in options.items():
        if name == _FACTOR:
            continue
        if name not in datacenters:
            known = ", ".join(sorted(datacenters)) or "none yet"
            raise BadConfiguration(
                f"Unrecognized strategy option {{{name}}} passed to NetworkTopologyStrategy: there is no such "
                f"datacenter (known: {known})"
            )
        factors[name] = _factor(factor)
    if not factors:
        raise BadConfiguration("Configuration for at least one datacenter must be present")
    return tuple(sorted(factors.items()))


def _factor(text: str) -> int:
    if not is_number(text):
        raise BadConfiguration(f"Replication factor must be numeric and non-negative, got '{text}'")
    return int(text)


def _tablets(value: PropertyValue | None) -> tuple[bool | None, int | None]:
    """Whether the keyspace uses tablets, and the initial tablets of a table; None: not specified."""
    if value is None:
        return None, None
    if isinstance(value, str):
        raise BadConfiguration("tablets is a map such as {'enabled': true, 'initial': 16}")
    for option in value:
        if option not in ("enabled", "initial"):
            raise BadConfiguration(f"Unrecognized tablets option {option}")
    initial = value.get("initial")
    if initial is not None and not is_number(initial):
        raise BadConfiguration(f"Initial number of tablets must be numeric, got '{initial}'")
    return _boolean(value.get("enabled"), "enabled", default=True), None if initial is None else int(initial)


# ---- tables


def _create_table(statement: CreateTableStatement, catalog: Catalog, session_keyspace: str | None) -> SchemaPlan:
    if statement.compact_storage:
        raise InvalidRequest("COMPACT STORAGE tables are not supported")
    keyspace, name = keyspace_of(statement.table, session_keyspace), statement.table.name
    columns = table_columns(statement)
    new = table_options(statement.properties, TableOptions(), on_tablets=_is_on_tablets(catalog, keyspace))
    request = CreateTableRequest(
        keyspace=keyspace,
        name=name,
        columns=columns,
        options=new.options,
        if_not_exists=statement.if_not_exists,
        min_tablet_count=new.min_tablets,
    )
    return SchemaPlan(request, SchemaChangeResult(SchemaChangeKind.CREATED, keyspace, name))


def _is_on_tablets(catalog: Catalog, keyspace: str) -> bool:
    """Also of a keyspace that does not exist: another check says so."""
    found = catalog.view.snapshot.keyspaces.get(keyspace)
    return found is None or found.on_tablets


def table_columns(statement: CreateTableStatement) -> tuple[Column, ...]:
    defined = {definition.name: definition for definition in statement.columns}
    if (twice := _first_twice([definition.name for definition in statement.columns])) is not None:
        raise InvalidRequest(f"Multiple definition of identifier {twice}")
    if not statement.partition_key:
        raise InvalidRequest("No PRIMARY KEY specified (exactly one required)")
    keys = (*statement.partition_key, *statement.clustering)
    for name in keys:
        _check_key(name, defined.get(name))
    if (twice := _first_twice(keys)) is not None:
        raise InvalidRequest(f"Key {twice} appears more than once in the PRIMARY KEY")
    directions = _directions(statement)
    columns = [
        Column(name=name, type=defined[name].type, kind=kind, position=position, descending=directions.get(name, False))
        for kind, names in (
            (ColumnKind.PARTITION_KEY, statement.partition_key),
            (ColumnKind.CLUSTERING, statement.clustering),
        )
        for position, name in enumerate(names)
    ]
    return (*columns, *(_value_column(one) for one in statement.columns if one.name not in keys))


def _first_twice(names: Sequence[str]) -> str | None:
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def _check_key(name: str, definition: ColumnDefinition | None) -> None:
    if definition is None:
        raise InvalidRequest(f"Unknown definition {name} referenced in PRIMARY KEY")
    if is_multi_cell(definition.type):
        raise InvalidRequest(f"Invalid non-frozen collection type for PRIMARY KEY component {name}")
    if definition.is_static:
        raise InvalidRequest(f"Static column {name} cannot be part of the PRIMARY KEY")


def _directions(statement: CreateTableStatement) -> dict[str, bool]:
    """By clustering column: whether it is descending."""
    if not statement.clustering_order:
        return {}
    names = tuple(ordering.column for ordering in statement.clustering_order)
    for name in names:
        if name not in statement.clustering:
            raise InvalidRequest("Only clustering key columns can be defined in CLUSTERING ORDER directive")
    missing = [name for name in statement.clustering if name not in names]
    if missing:
        raise InvalidRequest(f"Missing CLUSTERING ORDER for column {missing[0]}")
    if names != statement.clustering:
        raise InvalidRequest(
            "The order of columns in the CLUSTERING ORDER directive must be the one of the clustering key"
        )
    return {ordering.column: ordering.descending for ordering in statement.clustering_order}


def _value_column(definition: ColumnDefinition) -> Column:
    kind = ColumnKind.STATIC if definition.is_static else ColumnKind.REGULAR
    return Column(name=definition.name, type=definition.type, kind=kind)


def _alter_table(statement: AlterTableStatement, catalog: Catalog, session_keyspace: str | None) -> SchemaPlan:
    schema = catalog.stored(statement.table, session_keyspace)
    options = None
    if statement.properties is not None:
        on_tablets = _is_on_tablets(catalog, schema.keyspace)
        options = table_options(statement.properties, schema.options, on_tablets=on_tablets).options
    request = AlterTableRequest(
        keyspace=schema.keyspace,
        name=schema.name,
        added=tuple(_value_column(definition) for definition in statement.added),
        dropped=statement.dropped,
        options=options,
        renamed=statement.renamed,
    )
    _check_alter(statement, schema)
    return SchemaPlan(request, SchemaChangeResult(SchemaChangeKind.UPDATED, schema.keyspace, schema.name))


def _check_alter(statement: AlterTableStatement, schema: TableSchema) -> None:
    known = schema.by_name
    for definition in statement.added:
        if definition.name in known:
            raise InvalidRequest(f"Invalid column name {definition.name} because it conflicts with an existing column")
        if definition.is_static and not schema.clustering:
            raise InvalidRequest(
                "Static columns are only useful (and thus allowed) if the table has a clustering column"
            )
    for name in statement.dropped:
        if name not in known:
            raise InvalidRequest(f"Column {name} was not found in table {schema.full_name}")
        if known[name].kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(f"Cannot drop PRIMARY KEY part {name}")
    for old, new in statement.renamed:
        if old not in known:
            raise InvalidRequest(f"Cannot rename unknown column {old} in table {schema.full_name}")
        if new in known:
            raise InvalidRequest(
                f"Cannot rename column {old} to {new} in table {schema.full_name}; another column of that name "
                "already exist"
            )
        if known[old].kind not in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(f"Cannot rename non PRIMARY KEY part {old}")


# ---- options of keyspaces


def _boolean(value: PropertyValue | None, name: str, *, default: bool) -> bool:
    if value is None:
        return default
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadConfiguration(f"Invalid value for property '{name}': it is true or false")

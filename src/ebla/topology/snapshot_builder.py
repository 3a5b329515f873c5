"""Builds a snapshot from stored rows, or the next one from changes of the feed.

The proposer builds its new snapshot (`apply/`) with the same `with_rows`, from rows that are not encoded yet. The two
ways differ only in encoding, and a property test compares them after every command.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from ebla.model.errors import Corruption
from ebla.model.identity import Replica, TableId, TopologyVersion
from ebla.model.stored_value import unknown_fields
from ebla.model.transaction import Revision
from ebla.topology import keys
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.keys import Row, Rows, TabletChunkRow, TabletMapRow
from ebla.topology.snapshot import (
    CdcGeneration,
    CdcGenerationPart,
    GlobalRequest,
    Keyspace,
    Node,
    NodeRequest,
    Session,
    Snapshot,
    Table,
    TopologyState,
)
from ebla.topology.states import NodeState, TransitionState, UpgradeState
from ebla.topology.tablet_map import CHUNK_BITS, CHUNK_TABLETS, TabletChunk, TabletMap, TabletTransition, shift_of

V = TypeVar("V")

_PlaceRows = Callable[[Snapshot, Rows], Snapshot]


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """One changed key from group 0's feed. `value` None: the key was deleted."""

    key: str
    value: bytes | None
    revision: Revision


def advance(snapshot: Snapshot, entries: Iterable[FeedEntry]) -> Snapshot:
    """The snapshot after these changes. Entries of one transaction must come together."""
    rows: dict[str, Row | None] = {}
    revisions: dict[str, Revision | None] = {}
    unknown: dict[str, tuple[bytes, ...] | None] = {}
    for entry in entries:
        if not entry.key.startswith(keys.PREFIX):
            continue
        row = None if entry.value is None else keys.decode(entry.key, entry.value)
        rows[entry.key] = row
        revisions[entry.key] = None if row is None else entry.revision
        if row is not None and entry.value is not None:
            unknown[entry.key] = unknown_fields(type(row), entry.value) or None
    return with_revisions(with_rows(snapshot, rows), revisions, unknown)


def from_group0(values: Mapping[str, tuple[bytes, Revision]]) -> Snapshot:
    """The snapshot of all keys of a group 0 state."""
    return advance(Snapshot(), (FeedEntry(key, value, revision) for key, (value, revision) in values.items()))


def from_settings(entries: Mapping[str, bytes], version: TopologyVersion, base: Snapshot | None = None) -> Snapshot:
    """The snapshot while group 0 is not in charge: before the upgrade, and in recovery.

    Settings hold the same rows under the same keys. They converge without steps, so the caller supplies the version (it
    must grow with each change). In recovery `base` is group 0's last state on this node: its transitions stay where
    they stopped, because reads and writes must follow the stage that the data is in. Settings may
    add nodes or move them to `left`; an id that left in `base` stays left whatever they say.
    """
    start = base or Snapshot()
    assert version >= start.version, "a version never falls"
    rows: dict[str, Row | None] = {}
    for key in sorted(entries):
        if key == keys.STATE or not key.startswith(keys.PREFIX):
            continue
        row = keys.decode(key, entries[key])
        known = start.nodes.get(row.host) if isinstance(row, Node) else None
        if known is None or known.state is not NodeState.LEFT:
            rows[key] = row
    return _one_at_a_time(with_rows(start, rows), version)


def _one_at_a_time(snapshot: Snapshot, version: TopologyVersion) -> Snapshot:
    """Settings may show two nodes in transition at once. Only the first by id is; the others count as before or at
    rest.

    The rule is the same on every node, so nodes with the same entries route the same way.
    """
    moving = [node for node in snapshot.members() if node.in_transition]
    shown = snapshot.nodes.put_all((node.host, _at_rest(node)) for node in moving[1:])
    transition = snapshot.transition
    if transition is None and moving and moving[0].state is not NodeState.REBUILDING:
        transition = TransitionState.WRITE_BOTH_READ_OLD
    state = msgspec.structs.replace(
        snapshot.state,
        version=version,
        transition=transition,
        balancing_enabled=False,
        upgrade=UpgradeState.NOT_UPGRADED,
    )
    return replace(snapshot, state=state, nodes=shown)


def _at_rest(node: Node) -> Node:
    joining = node.state in (NodeState.BOOTSTRAPPING, NodeState.REPLACING)
    if joining:
        return msgspec.structs.replace(node, state=NodeState.NONE, tokens=())
    return msgspec.structs.replace(node, state=NodeState.NORMAL)


def with_revisions(
    snapshot: Snapshot,
    revisions: Mapping[str, Revision | None],
    unknown: Mapping[str, tuple[bytes, ...] | None] = MappingProxyType({}),
) -> Snapshot:
    """When keys changed (None: deleted), and the fields of their rows that this release does not know. A rewritten key
    keeps those fields; a deleted key drops them, or a later row under the same key would inherit them."""
    gone = {key: None for key, revision in revisions.items() if revision is None}
    return replace(
        snapshot,
        revisions=_by_key(snapshot.revisions, revisions),
        unknown_fields=_by_key(snapshot.unknown_fields, {**unknown, **gone}),
    )


def _by_key(old: FrozenMap[str, V], changes: Mapping[str, V | None]) -> FrozenMap[str, V]:
    if not old and not any(change is not None for change in changes.values()):
        return old
    kept = dict(old)
    for key, change in changes.items():
        if change is None:
            kept.pop(key, None)
        else:
            kept[key] = change
    return FrozenMap(kept)


def with_rows(snapshot: Snapshot, rows: Rows) -> Snapshot:
    """The snapshot with these rows in place of those under the same keys."""
    groups: dict[str, dict[str, Row | None]] = {}
    for key, row in rows.items():
        groups.setdefault(_family(key), {})[key] = row
    for family, part in groups.items():
        snapshot = _PLACE[family](snapshot, part)
    return snapshot


def _family(key: str) -> str:
    if key == keys.STATE:
        return keys.STATE
    cut = key.find("/", len(keys.PREFIX)) + 1
    family = key[:cut]
    if family not in _PLACE:
        raise Corruption(f"{key} is no key of the topology")
    return family


def _place_state(snapshot: Snapshot, rows: Rows) -> Snapshot:
    row = rows[keys.STATE]
    return replace(snapshot, state=TopologyState() if row is None else _typed(row, TopologyState))


def _placing(name: str, kind: type, identity: Callable[[str], Any] = keys.id_part) -> _PlaceRows:
    """For families of which every key is one row of a map of the snapshot."""

    def place(snapshot: Snapshot, rows: Rows) -> Snapshot:
        changed: dict[str, Any] = {name: _merged(getattr(snapshot, name), rows, identity, kind)}
        return replace(snapshot, **changed)

    return place


def _place_requests(snapshot: Snapshot, rows: Rows) -> Snapshot:
    of_nodes = {key: row for key, row in rows.items() if not isinstance(row, GlobalRequest)}
    of_cluster = {key: row for key, row in rows.items() if not isinstance(row, NodeRequest)}
    return replace(
        snapshot,
        node_requests=_merged(snapshot.node_requests, of_nodes, keys.id_part, NodeRequest),
        global_requests=_merged(snapshot.global_requests, of_cluster, keys.id_part, GlobalRequest),
    )


def _place_cdc(snapshot: Snapshot, rows: Rows) -> Snapshot:
    heads = dict(snapshot.cdc_generations)
    parts = dict(snapshot.cdc_parts)
    for key, row in rows.items():
        generation, number = keys.cdc_part(key)
        if number is None:
            _put(heads, generation, row, CdcGeneration)
        else:
            _put(parts, (generation, number), row, CdcGenerationPart)
    return replace(snapshot, cdc_generations=FrozenMap(heads), cdc_parts=FrozenMap(parts))


def _place_tablets(snapshot: Snapshot, rows: Rows) -> Snapshot:
    by_table: dict[TableId, _TabletRows] = {}
    for key, row in rows.items():
        table, kind, number = keys.tablets_part(key)
        gathered = by_table.setdefault(table, _TabletRows())
        if kind == "map":
            gathered.heads.append(None if row is None else _typed(row, TabletMapRow))
        elif kind == "chunk":
            gathered.chunks[number] = None if row is None else _typed(row, TabletChunkRow)
        else:
            gathered.transitions[number] = None if row is None else _typed(row, TabletTransition)
    maps = dict(snapshot.tablets)
    known: dict[Replica, Replica] = {}
    for table, gathered in by_table.items():
        changed = _tablet_map(table, maps.get(table), gathered, known)
        if changed is None:
            maps.pop(table, None)
        else:
            maps[table] = changed
    return replace(snapshot, tablets=FrozenMap(maps))


@dataclass(slots=True)
class _TabletRows:
    """The changed rows of one table."""

    heads: list[TabletMapRow | None] = field(default_factory=list)
    chunks: dict[int, TabletChunkRow | None] = field(default_factory=dict)
    transitions: dict[int, TabletTransition | None] = field(default_factory=dict)


def _tablet_map(
    table: TableId, old: TabletMap | None, rows: _TabletRows, known: dict[Replica, Replica]
) -> TabletMap | None:
    if rows.heads and rows.heads[0] is None:
        return None
    head = rows.heads[0] if rows.heads else None
    if head is None:
        if old is None:
            raise Corruption(f"tablets of table {table} came without their map")
        head = keys.map_row(old)
    count = head.tablet_count
    expected = -(-count // CHUNK_TABLETS)
    same_size = old is not None and old.tablet_count == count
    chunks: list[TabletChunk | None] = list(old.chunks) if old is not None and same_size else [None] * expected
    for number, row in rows.chunks.items():
        if row is not None and number < expected:
            before = chunks[number]
            transitions = before.transitions if before is not None else FrozenMap[int, TabletTransition]()
            chunks[number] = TabletChunk(row.replica_sets(known), row.repair_times_ms, transitions)
    complete = tuple(chunk for chunk in chunks if chunk is not None)
    if len(complete) != expected:
        raise Corruption(f"tablets of table {table}: {expected - len(complete)} of {expected} chunks are missing")
    moving = _with_transitions(complete, rows.transitions)
    built = TabletMap(
        table=table, tablet_count=count, chunks=moving, resize=head.resize, shift=shift_of(count), streams=head.streams
    )
    assert not rows.chunks or sum(len(chunk.replicas) for chunk in built.chunks) == count
    return built


def _with_transitions(
    chunks: tuple[TabletChunk, ...], changed: Mapping[int, TabletTransition | None]
) -> tuple[TabletChunk, ...]:
    if not changed:
        return chunks
    touched: dict[int, dict[int, TabletTransition]] = {}
    for number, row in changed.items():
        index = number >> CHUNK_BITS
        if index >= len(chunks):
            assert row is None, "a transition of a tablet that does not exist"
            continue
        transitions = touched.setdefault(index, dict(chunks[index].transitions))
        if row is None:
            transitions.pop(number, None)
        else:
            transitions[number] = row
    result = list(chunks)
    for index, transitions in touched.items():
        ordered = FrozenMap((number, transitions[number]) for number in sorted(transitions))
        result[index] = replace(chunks[index], transitions=ordered)
    return tuple(result)


def _merged(old: FrozenMap[Any, Any], rows: Rows, identity: Callable[[str], Any], kind: type) -> FrozenMap[Any, Any]:
    merged = dict(old)
    for key, row in rows.items():
        _put(merged, identity(key), row, kind)
    return FrozenMap(merged)


def _put(target: dict[Any, Any], identity: Any, row: Row | None, kind: type) -> None:
    if row is None:
        target.pop(identity, None)
    else:
        target[identity] = _typed(row, kind)


def _typed(row: Row, kind: type) -> Any:
    if not isinstance(row, kind):
        raise Corruption(f"a row of kind {type(row).__name__} stands where {kind.__name__} belongs")
    return row


_PLACE: dict[str, _PlaceRows] = {
    keys.STATE: _place_state,
    keys.NODE: _placing("nodes", Node),
    keys.REQUEST: _place_requests,
    keys.SESSION: _placing("sessions", Session),
    keys.CDC: _place_cdc,
    keys.KEYSPACE: _placing("keyspaces", Keyspace, lambda key: key.removeprefix(keys.KEYSPACE)),
    keys.TABLE: _placing("tables", Table),
    keys.TABLETS: _place_tablets,
}

"""A snapshot as JSON, for people and for `explain`: the rows under their group 0 keys."""

import msgspec

from ebla.model.errors import InvalidRequest
from ebla.model.identity import HostId
from ebla.topology import keys
from ebla.topology.keys import Row, chunk_row, map_row
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import with_rows

FORMAT = 1


class SnapshotFile(msgspec.Struct, frozen=True):
    format: int
    rows: dict[str, Row]


def rows_of(snapshot: Snapshot) -> dict[str, Row]:
    """Every row, by key; the snapshot can be made from them again."""
    rows: dict[str, Row] = {keys.STATE: snapshot.state}
    rows.update({keys.node_key(each.host): each for each in snapshot.nodes.values()})
    rows.update({keys.request_key(each.id): each for each in snapshot.node_requests.values()})
    rows.update({keys.request_key(each.id): each for each in snapshot.global_requests.values()})
    rows.update({keys.session_key(each.id): each for each in snapshot.sessions.values()})
    rows.update({keys.keyspace_key(each.name): each for each in snapshot.keyspaces.values()})
    rows.update({keys.table_key(each.id): each for each in snapshot.tables.values()})
    rows.update({keys.generation_key(each.id): each for each in snapshot.cdc_generations.values()})
    rows.update({keys.part_key(*identity): part for identity, part in snapshot.cdc_parts.items()})
    for table, tablets in snapshot.tablets.items():
        rows[keys.map_key(table)] = map_row(tablets)
        for index, chunk in enumerate(tablets.chunks):
            rows[keys.chunk_key(table, index)] = chunk_row(chunk.replicas, chunk.repair_times_ms)
        rows.update({keys.transition_key(table, number): each for number, each in tablets.transitions()})
    return {key: rows[key] for key in sorted(rows)}


def to_json(snapshot: Snapshot) -> bytes:
    return msgspec.json.format(msgspec.json.encode(SnapshotFile(FORMAT, rows_of(snapshot))), indent=1)


def from_json(text: bytes) -> Snapshot:
    try:
        file = msgspec.json.decode(text, type=SnapshotFile)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"this is no snapshot of a topology: {error}") from error
    if file.format != FORMAT:
        raise InvalidRequest(f"the snapshot has format {file.format}, and this release reads {FORMAT}")
    snapshot = with_rows(Snapshot(), dict(file.rows))
    _check_references(snapshot)
    return snapshot


def _check_references(snapshot: Snapshot) -> None:
    """The file may be edited by hand, so check that every row a row refers to is present."""
    hosts = [
        *(("a request", request.host) for request in snapshot.node_requests.values()),
        *(("a tablet", each) for each in _tablet_hosts(snapshot)),
    ]
    missing = [f"{what} names node {host}" for what, host in hosts if host not in snapshot.nodes]
    missing += [
        f"node {node.host} names request {node.request}"
        for node in snapshot.nodes.values()
        if node.request is not None and node.request not in snapshot.node_requests
    ]
    missing += [
        f"the queue names request {each}"
        for each in snapshot.state.global_requests
        if each not in snapshot.global_requests
    ]
    missing += [
        f"table {table.full_name} names keyspace {table.keyspace}"
        for table in snapshot.tables.values()
        if table.keyspace not in snapshot.keyspaces
    ]
    missing += [f"tablets are those of table {table}" for table in snapshot.tablets if table not in snapshot.tables]
    if missing:
        raise InvalidRequest(f"{missing[0]}, which is not in the file")


def _tablet_hosts(snapshot: Snapshot) -> dict[HostId, None]:
    found: dict[HostId, None] = {}
    for tablets in snapshot.tablets.values():
        found.update(dict.fromkeys(host for chunk in tablets.chunks for host in chunk.hosts))
        found.update(dict.fromkeys(each.host for _, moving in tablets.transitions() for each in moving.new_replicas))
    return found

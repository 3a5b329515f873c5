"""The group 0 key of each row of the snapshot, and its encoding.

Everything is under one prefix, so one ordered feed carries a whole version:

    topology/state                              the static row; every step rewrites it
    topology/node/<host>                        one row per node, never deleted
    topology/request/<id>                       node and global requests
    topology/session/<id>                       an open session; deleted = closing
    topology/cdc/<generation>/head | part/<n>   a vnode CDC generation and its data
    topology/keyspace/<name>, topology/table/<id>
    topology/tablets/<table>/map                tablet count, resize, change streams
    topology/tablets/<table>/chunk/<n>          replicas of 128 tablets
    topology/tablets/<table>/transition/<n>     one tablet's transition

A stage change touches three small keys (state, transition, session); only the end of a migration rewrites a chunk.

A newer release appends fields to rows. An older release keeps the fields it does not know and writes them back. It
cannot do so for structs inside rows (`Replication`, `Resize`, …), so those never grow: new fields go into the row.
"""

import uuid
from collections.abc import Mapping
from typing import Final

import msgspec

from ebla.model.errors import Corruption
from ebla.model.identity import HostId, Replica, RequestId, SessionId, ShardNumber, TableId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.topology.snapshot import (
    CdcGeneration,
    CdcGenerationPart,
    GenerationId,
    GlobalRequest,
    Keyspace,
    Node,
    NodeRequest,
    Session,
    Table,
    TopologyState,
)
from ebla.topology.tablet_map import Resize, TabletChunk, TabletMap, TabletStreams, TabletTransition

PREFIX: Final = "topology/"
STATE: Final = "topology/state"
NODE: Final = "topology/node/"
REQUEST: Final = "topology/request/"
SESSION: Final = "topology/session/"
CDC: Final = "topology/cdc/"
KEYSPACE: Final = "topology/keyspace/"
TABLE: Final = "topology/table/"
TABLETS: Final = "topology/tablets/"

SHARD_BITS: Final = 16
SHARD_MASK: Final = (1 << SHARD_BITS) - 1


class TabletMapRow(msgspec.Struct, frozen=True, tag="tablet_map", array_like=True):
    tablet_count: int
    resize: Resize
    streams: tuple[TabletStreams, ...] = ()


class TabletChunkRow(msgspec.Struct, frozen=True, tag="tablet_chunk", array_like=True):
    """Replicas of consecutive tablets, each encoded as (index into `hosts`) × 2^16 + shard, so that each host id is
    stored once."""

    hosts: tuple[HostId, ...]
    places: tuple[tuple[int, ...], ...]
    repair_times_ms: tuple[int, ...] = ()

    def replica_sets(self, known: dict[Replica, Replica]) -> tuple[tuple[Replica, ...], ...]:
        """The replicas, shared with those already `known`."""
        at: dict[int, Replica] = {}
        for place in dict.fromkeys(place for places in self.places for place in places):
            replica = Replica(self.hosts[place >> SHARD_BITS], ShardNumber(place & SHARD_MASK))
            at[place] = known.setdefault(replica, replica)
        return tuple([tuple([at[place] for place in places]) for places in self.places])


Row = (
    TopologyState
    | Node
    | NodeRequest
    | GlobalRequest
    | Session
    | Keyspace
    | Table
    | CdcGeneration
    | CdcGenerationPart
    | TabletMapRow
    | TabletChunkRow
    | TabletTransition
)
Rows = Mapping[str, Row | None]
"""Keys to their new rows; None: the key is deleted."""


def map_row(tablets: TabletMap) -> TabletMapRow:
    return TabletMapRow(tablets.tablet_count, tablets.resize, tablets.streams)


def chunk_row(chunk: TabletChunk) -> TabletChunkRow:
    hosts = sorted({replica.host for replicas in chunk.replicas for replica in replicas})
    place = {host: number << SHARD_BITS for number, host in enumerate(hosts)}
    places = tuple(tuple(place[each.host] | each.shard for each in replicas) for replicas in chunk.replicas)
    return TabletChunkRow(tuple(hosts), places, chunk.repair_times_ms)


def tablet_rows(tablets: TabletMap) -> dict[str, Row]:
    """The map and the chunks of a table, without transitions."""
    rows: dict[str, Row] = {map_key(tablets.table): map_row(tablets)}
    rows.update({chunk_key(tablets.table, index): chunk_row(chunk) for index, chunk in enumerate(tablets.chunks)})
    return rows


def node_key(host: HostId) -> str:
    return f"{NODE}{host}"


def request_key(request: RequestId) -> str:
    return f"{REQUEST}{request}"


def session_key(session: SessionId) -> str:
    return f"{SESSION}{session}"


def generation_key(generation: GenerationId) -> str:
    return f"{CDC}{generation}/head"


def part_key(generation: GenerationId, number: int) -> str:
    return f"{CDC}{generation}/part/{number:04}"


def keyspace_key(name: str) -> str:
    return f"{KEYSPACE}{name}"


def table_key(table: TableId) -> str:
    return f"{TABLE}{table}"


def map_key(table: TableId) -> str:
    return f"{TABLETS}{table}/map"


def chunk_key(table: TableId, chunk: int) -> str:
    return f"{TABLETS}{table}/chunk/{chunk:05}"


def transition_key(table: TableId, tablet: int) -> str:
    return f"{TABLETS}{table}/transition/{tablet:07}"


_DECODER: msgspec.msgpack.Decoder[Row] = msgspec.msgpack.Decoder(Row)


def encode(row: Row, unknown: tuple[bytes, ...] = ()) -> bytes:
    """`unknown`: trailing fields of a newer release."""
    return encode_stored(StoredValue(row, unknown))


def decode(key: str, value: bytes) -> Row:
    """The row under a key. A value that does not decode is corruption (or a newer format) and is never ignored."""
    try:
        return _DECODER.decode(value)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Corruption(f"the value of {key} is not a row of the topology: {error}") from error


def tablets_part(key: str) -> tuple[TableId, str, int]:
    """Table, which of its rows (`map`, `chunk`, `transition`) and the number of it, from a key under `TABLETS`."""
    try:
        table, kind, *number = key.removeprefix(TABLETS).split("/")
        return TableId(uuid.UUID(table)), kind, int(number[0]) if number else 0
    except ValueError as error:
        raise _no_key(key) from error


def cdc_part(key: str) -> tuple[GenerationId, int | None]:
    """Generation and part number (None: the head), from a key under `CDC`."""
    try:
        generation, kind, *number = key.removeprefix(CDC).split("/")
        return uuid.UUID(generation), None if kind == "head" else int(number[0])
    except (ValueError, IndexError) as error:
        raise _no_key(key) from error


def id_part(key: str) -> uuid.UUID:
    try:
        return uuid.UUID(key.rsplit("/", 1)[1])
    except ValueError as error:
        raise _no_key(key) from error


def _no_key(key: str) -> Corruption:
    return Corruption(f"{key} is no key of the topology")

"""A random cluster with random contents, and the rows that a user must see."""

from dataclasses import dataclass
from random import Random

import msgspec
from tests.unit.request.read_rig import (
    EVERYTHING,
    NOW_S,
    A,
    B,
    C,
    MemoryReplica,
    ReadRig,
    snapshot_of,
    tablets_of,
)
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, stored_prefix
from tests.unit.topology.small_cluster import TABLE, network

from ebla.model.identity import Replica
from ebla.model.schema import TableOptions, TableSchema, TombstoneGc
from ebla.request.router_types import ReadQuery, RouterLimits
from ebla.storage.codec.key_codec import head_key, prefix_end, row_key, split_key
from ebla.storage.codec.live_rows import has_static, is_live_row, static_values, visible_cells
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head
from ebla.storage.layers.layer import Item
from ebla.topology.snapshot import Snapshot
from ebla.wire.row_messages import Span

REPLICAS = (A, B, C)

PARTITIONS = 6

COLLECTING = msgspec.structs.replace(MIXED, options=TableOptions(tombstone_gc=TombstoneGc.IMMEDIATE))

Shown = tuple[bytes, object]


def shown(item: Item, schema: TableSchema) -> Shown:
    """What a user sees of a live row or a head."""
    key, value = item
    if is_head(value):
        return key, static_values(schema, decode_head(value), NOW_S)
    return key, visible_cells(schema, decode_row(value, schema.layouts), NOW_S)


def expected(whole: MemoryReplica, query: ReadQuery) -> list[Shown]:
    found, counts = [], dict[bytes, int]()
    for key, value in whole.shown(query.spans, is_reversed=query.is_reversed):
        prefix = split_key(key)[0]
        if is_head(value):
            if has_static(value, whole.schema, NOW_S):
                found.append(shown((key, value), whole.schema))
        elif is_live_row(value, whole.schema, NOW_S):
            counts[prefix] = counts.get(prefix, 0) + 1
            if not query.partition_rows_max or counts[prefix] <= query.partition_rows_max:
                found.append(shown((key, value), whole.schema))
    return found


@dataclass(kw_only=True)
class Case:
    """One cluster with its contents, drawn from a seed."""

    rng: Random
    whole: MemoryReplica
    parts: dict[Replica, list[Item]]
    schema: TableSchema

    def query(self) -> ReadQuery:
        rng = self.rng
        return ReadQuery(
            table=TABLE,
            spans=self.spans(),
            rows_max=rng.choice([1, 2, 3, 7, 1000]),
            now_s=NOW_S,
            is_reversed=rng.random() < 0.5,
            partition_rows_max=rng.choice([0, 0, 1, 2, 3]),
        )

    def spans(self) -> tuple[Span, ...]:
        """Everything, some of the ring, whole partitions, slices, rows with or without heads."""
        rng = self.rng
        prefixes = sorted(stored_prefix([f"p{number}".encode()]) for number in range(PARTITIONS))
        match rng.randrange(5):
            case 0:
                return EVERYTHING
            case 1:
                start, end = sorted(rng.sample(prefixes, 2))
                return ((start[: rng.choice([8, 30])], rng.choice([end, end[:8], None])),)
            case 2:
                some = sorted(rng.sample(prefixes, 3))
                return tuple((prefix, prefix_end(prefix)) for prefix in some)
            case 3:
                some = sorted(rng.sample(prefixes, rng.choice([1, 2])))
                return tuple(span for prefix in some for span in self._slices(prefix))
            case _:
                keys = sorted(rng.sample(sorted(self.whole.items), 2)) if len(self.whole.items) > 2 else []
                return tuple((key, key + b"\0") for key in keys) or EVERYTHING

    def _slices(self, prefix: bytes) -> list[Span]:
        rng = self.rng
        rows = [key for key in sorted(self.whole.items) if key.startswith(prefix) and key != head_key(prefix)]
        middle = rng.choice(rows) if rows else row_key(prefix, b"m")
        found: list[Span] = []
        if rng.random() < 0.5:
            found.append((head_key(prefix), head_key(prefix) + b"\0"))
        if rng.random() < 0.5 and middle != row_key(prefix):
            found.append((row_key(prefix), middle))
            middle += b"\0"
        found.append((middle, prefix_end(prefix)))
        return found

    def fill(self, rig: ReadRig, *, cuts: bool = True) -> None:
        for replica, items in self.parts.items():
            one = rig.clients.of(replica)
            one.write(items)
            if cuts:
                one.cut = lambda: self.rng.choice([1, 2, 3, 5, 1000])


def case_of(seed: int, schema: TableSchema = MIXED, *, on_quorums: bool = True) -> Case:
    rng = Random(seed)
    rows = RandomRows(seed, Mix(plain=rng.choice([0.0, 0.5, 0.9]), partitions=PARTITIONS, rows=20))
    whole = MemoryReplica(schema)
    parts: dict[Replica, list[Item]] = {replica: [] for replica in REPLICAS}
    for _ in range(4):
        for item in rows.layer():
            whole.write([item])
            for replica in rng.sample(REPLICAS, rng.choice([2, 3] if on_quorums else [1, 2, 3])):
                parts[replica].append(item)
    return Case(rng=rng, whole=whole, parts=parts, schema=schema)


def snapshot_for(case: Case) -> Snapshot:
    """One tablet, several with the same replicas in other orders, or vnodes."""
    match case.rng.randrange(3):
        case 0:
            return snapshot_of(tablets_of(REPLICAS), case.schema)
        case 1:
            sets = [case.rng.sample(REPLICAS, 3) for _ in range(8)]
            return snapshot_of(tablets_of(*sets), case.schema)
        case _:
            tokens = [(case.rng.randrange(-(2**63), 2**63), case.rng.randrange(-(2**63), 2**63)) for _ in "abc"]
            base = snapshot_of(None, case.schema).nodes.values()
            nodes = [msgspec.structs.replace(node, tokens=pair) for node, pair in zip(base, tokens)]
            return snapshot_of(None, case.schema, nodes=nodes, replication=network(dc1=3))


def limits_of(case: Case) -> RouterLimits:
    return RouterLimits(page_bytes_max=case.rng.choice([60, 1 << 20]), parallel_ranges_max=case.rng.choice([1, 3, 64]))

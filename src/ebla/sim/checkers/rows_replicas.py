"""The state at the end: all faults are healed, every move has ended and everything was read once at ALL.

INV-ROWS-5   even before that, a quorum of the replicas has each value that a quorum acknowledged, whatever joined since
INV-ROWS-10  all replicas of a row are equal
INV-ROWS-11  a shard has the stacks that the topology gives it, and no folder of another
INV-ROWS-12  nothing is left running: no version is held, no request waits, no guard is held
"""

from collections.abc import Awaitable, Callable, Mapping

from ebla.feed.topology_view import View
from ebla.model.identity import Replica, TableId
from ebla.model.schema import TableSchema
from ebla.request.read_plan import split_by_replicas
from ebla.sim.checkers.rows import Cell
from ebla.sim.clusters.nodes import SimShard
from ebla.sim.workloads.rows_table import ALL_KEYS, row_span
from ebla.storage.codec.row_codec import decode_row, is_head
from ebla.storage.manifest import layers_folder
from ebla.storage.store_identity import is_stamp
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest

ROWS_MAX = 10_000
ReadReplica = Callable[[Replica, ReadRowsRequest], Awaitable[ReadRowsAnswer]]


async def replica_difference(view: View, table: TableId, now_s: int, ask: ReadReplica) -> str | None:
    """INV-ROWS-10."""
    schema = view.schemas[table]
    for piece in split_by_replicas(view.sets.of(table), (ALL_KEYS,)):
        request = ReadRowsRequest(version=view.version, table=table, spans=piece.spans, rows_max=ROWS_MAX, now_s=now_s)
        answers = {replica: await ask(replica, request) for replica in piece.replicas}
        rows = {
            replica: {key: decode_row(value, schema.layouts) for key, value in answer.items if not is_head(value)}
            for replica, answer in answers.items()
        }
        first, *others = piece.replicas
        for other in others:
            keys = [key for key in {**rows[first], **rows[other]} if rows[first].get(key) != rows[other].get(key)]
            if keys or answers[first].digest != answers[other].digest:
                shown = [(key.hex(), rows[first].get(key), rows[other].get(key)) for key in keys[:2]]
                return f"INV-ROWS-10: {schema.full_name}: {first} and {other} differ: {shown}"
    return None


async def lost_from_quorum(
    view: View, table: TableId, now_s: int, held: Mapping[Cell, int], ask: ReadReplica
) -> str | None:
    """INV-ROWS-5, in storage. `held` has the oldest timestamp that each cell may have. Reads would hide a replica that
    lacks the value as long as they also reach one that has it."""
    schema = view.schemas[table]
    for piece in split_by_replicas(view.sets.of(table), (ALL_KEYS,)):
        request = ReadRowsRequest(version=view.version, table=table, spans=piece.spans, rows_max=ROWS_MAX, now_s=now_s)
        stored = [_timestamps(schema, await ask(replica, request)) for replica in piece.replicas]
        for cell, at_us in held.items():
            key, _ = row_span(schema, cell)
            if not any(start <= key and (end is None or key < end) for start, end in piece.spans):
                continue
            having = [replica for replica, rows in zip(piece.replicas, stored) if rows.get(key, 0) >= at_us]
            if len(having) <= len(piece.replicas) // 2:
                return f"INV-ROWS-5: {cell}, acknowledged with {at_us}, is on {len(having)} replicas only: {having}"
    return None


def _timestamps(schema: TableSchema, answer: ReadRowsAnswer) -> dict[bytes, int]:
    """Of the values, by key."""
    number = schema.column("a").number
    rows = {key: decode_row(value, schema.layouts) for key, value in answer.items if not is_head(value)}
    return {key: row.cells[number].timestamp_us for key, row in rows.items() if number in row.cells}


def unexpected_stacks(shard: SimShard, view: View) -> str | None:
    """INV-ROWS-11."""
    process, taps = shard.process, shard.taps
    assert process is not None
    if taps is None or taps.replica is None:
        return f"{shard.unit.name} does not serve"
    store = taps.replica.context.store
    tables = [*(stack.entry.table for stack in store.stacks.values()), *(schema.id for schema in store.tables)]
    gone = [table for table in tables if table not in view.snapshot.tables]
    if gone:
        return f"INV-ROWS-11: {shard.unit.name} has something of table {gone[0]}, which was dropped"
    folder = layers_folder(process.folder)
    disk = process.environment.disk
    names = disk.list_folder(folder) if disk.exists(folder) else []
    known = [f"{stack.incarnation:016x}" for stack in store.stacks.values()]
    left = [name for name in names if name.split("-")[0] not in known and not is_stamp(name)]
    return f"INV-ROWS-11: {shard.unit.name} has folders of no stack: {left}" if left else None


def leftover_work(shard: SimShard) -> str | None:
    """INV-ROWS-12."""
    process, context, taps = shard.process, shard.context, shard.taps
    assert process is not None
    assert context is not None
    assert taps is not None
    assert taps.replica is not None
    view, router, replica = process.view, context.router, taps.replica
    version = view.current.version
    held = {
        "versions": view.versions.oldest(version) < version,
        "writes": router.writes.in_flight,
        "reads": router.reads.in_flight,
        "writes of replicas": replica.writer.waiting,
        "reads of replicas": replica.reader.waiting,
        "guards": replica.context.guards.held,
    }
    left = [name for name, count in held.items() if count]
    return f"INV-ROWS-12: {shard.unit.name} still has {', '.join(left)} long after all was healed" if left else None

"""The topology model at 131,072 tablets, RF 3, against its limits, and how it grows from a tenth of that.

    python -m benchmarks.bench_topology_model [--quick]

Each size runs in a process of its own: 100 nodes with 8 shards, 8 tables, 200 tablets in transition. Memory is what the
allocator gave to a loaded snapshot (by tracemalloc, in a load that is not timed). The load is CPU time, the other times
are medians. Sizes take turns and the best of the rounds counts, since other load only adds. The last line is JSON.
"""

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections.abc import Callable

from ebla.model.identity import HistoryId, HostId, Replica, SessionId, ShardNumber, TableId
from ebla.model.transaction import Revision
from ebla.topology import keys
from ebla.topology.apply.command import apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import AdvanceTablets, TabletAdvance
from ebla.topology.keys import Row, TabletMapRow, chunk_row
from ebla.topology.next_step import next_step
from ebla.topology.request_queue import LivenessView
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Keyspace, Node, Replication, Snapshot, Table, TopologyState
from ebla.topology.snapshot_builder import FeedEntry, advance, from_group0
from ebla.topology.states import NodeState, Strategy, TabletStage, TransitionKind, TransitionState, UpgradeState
from ebla.topology.tablet_map import CHUNK_TABLETS, Resize, TabletChunk, TabletTransition

SMALL, LARGE = 13_107, 131_072
MEMORY_MIB_MAX = 120.0
LOAD_S_MAX = 3.0
STAGE_CHANGE_MS_MAX = 1.0
LOOKUP_US_MAX = 3.0
NEXT_STEP_MS_MAX = 5.0
GROWTH_MAX = 1.3
NODES, SHARDS, FACTOR, MOVING = 100, 8, 3, 200
HISTORY = HistoryId(uuid.UUID(int=7))


def table_sizes(tablets: int) -> list[int]:
    """Eight tables with powers of two that add up."""
    if tablets % 8 == 0:
        return [tablets // 8] * 8
    return [1 << bit for bit in range(tablets.bit_length()) if tablets >> bit & 1]


def rows_of(tablets: int) -> dict[str, Row]:
    rng = random.Random(1)
    hosts = [HostId(uuid.UUID(int=rng.getrandbits(128))) for _ in range(NODES)]
    rows: dict[str, Row] = {
        keys.STATE: TopologyState(upgrade=UpgradeState.DONE, transition=TransitionState.TABLET_MIGRATION)
    }
    for number, host in enumerate(hosts):
        tokens = tuple(sorted(rng.getrandbits(63) for _ in range(16)))
        node = Node(
            host=host,
            datacenter="dc1",
            rack=f"r{number % 3}",
            shard_count=SHARDS,
            ignore_msb=12,
            release_version="1.0",
            address=f"10.0.0.{number}",
            num_tokens=16,
            state=NodeState.NORMAL,
            tokens=tokens,
        )
        rows[keys.node_key(host)] = node
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", FACTOR),))
    rows[keys.keyspace_key("ks")] = Keyspace(name="ks", replication=replication, on_tablets=True)
    for index, count in enumerate(table_sizes(tablets)):
        table = TableId(uuid.UUID(int=1000 + index))
        rows[keys.table_key(table)] = Table(id=table, keyspace="ks", name=f"t{index}")
        rows[keys.map_key(table)] = TabletMapRow(count, Resize())
        sets = tuple(_replicas(rng, hosts) for _ in range(count))
        for chunk, start in enumerate(range(0, count, CHUNK_TABLETS)):
            rows[keys.chunk_key(table, chunk)] = chunk_row(TabletChunk(sets[start : start + CHUNK_TABLETS]))
        for number in range(0, count, max(1, count * 8 // MOVING)):
            new = (*sets[number][:-1], _other(rng, hosts, sets[number]))
            moving = TabletTransition(
                kind=TransitionKind.MIGRATION, stage=TabletStage.ALLOW_WRITE_BOTH_READ_OLD, new_replicas=new
            )
            rows[keys.transition_key(table, number)] = moving
    return rows


def _replicas(rng: random.Random, hosts: list[HostId]) -> tuple[Replica, ...]:
    return tuple(Replica(host, ShardNumber(rng.randrange(SHARDS))) for host in rng.sample(hosts, FACTOR))


def _other(rng: random.Random, hosts: list[HostId], taken: tuple[Replica, ...]) -> Replica:
    free = [host for host in hosts if all(host != replica.host for replica in taken)]
    return Replica(rng.choice(free), ShardNumber(0))


def median_us(call: Callable[[int], object], rounds: int, inner: int = 1) -> float:
    times = []
    for round_ in range(rounds):
        began = time.perf_counter_ns()
        for each in range(inner):
            call(round_ * inner + each)
        times.append((time.perf_counter_ns() - began) / inner / 1000)
    return statistics.median(times)


def measure(tablets: int) -> dict[str, float]:
    values = {key: (keys.encode(row), Revision(HISTORY, 1)) for key, row in rows_of(tablets).items()}
    began = time.process_time()
    snapshot = from_group0(values)
    load_s = time.process_time() - began
    times = _times(snapshot)
    del snapshot
    gc.collect()
    tracemalloc.start()
    traced = from_group0(values)
    gc.collect()
    memory_mib = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    assert traced.tablets
    return {"memory_mib": memory_mib, "load_s": load_s, **times}


def _times(snapshot: Snapshot) -> dict[str, float]:
    table = max(snapshot.tablets, key=lambda each: snapshot.tablets[each].tablet_count)
    moving = list(snapshot.tablets[table].transitions())
    rng = random.Random(2)

    def change(number: int) -> ProposedChange:
        tablet, transition = moving[number % len(moving)]
        session = SessionId(uuid.UUID(int=number))
        step = TabletAdvance(table=table, tablet=tablet, leaving=transition.stage, session=session)
        applied = apply_command(snapshot, AdvanceTablets((step,), fence=snapshot.version))
        assert isinstance(applied, ProposedChange)
        return applied

    transaction = change(0).transaction
    revision = Revision(HISTORY, 2)
    entries = [FeedEntry(each.key, getattr(each, "value", None), revision) for each in transaction.changes]
    replicas = ReplicaSets(snapshot).of(table)
    tokens = [rng.getrandbits(64) - 2**63 for _ in range(10_000)]
    liveness = LivenessView(frozenset(snapshot.nodes), 0)
    return {
        "stage_change_ms": median_us(change, 300) / 1000,
        "feed_step_ms": median_us(lambda _: advance(snapshot, entries), 300) / 1000,
        "lookup_us": median_us(lambda number: replicas.writing(tokens[number % 10_000]), 50, 2000),
        "next_step_ms": median_us(lambda _: next_step(snapshot, liveness), 100) / 1000,
        "drained_scan_ms": median_us(lambda _: snapshot.has_tablets(HostId(uuid.UUID(int=5))), 50) / 1000,
    }


def in_child(tablets: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_topology_model", "--child", str(tablets)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    parsed: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return parsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return 0
    best: dict[int, dict[str, float]] = {SMALL: {}, LARGE: {}}
    for _ in range(1 if options.quick else 5):
        for size, figures in best.items():
            for name, value in in_child(size).items():
                figures[name] = min(value, figures.get(name, value))
    large, small = best[LARGE], best[SMALL]
    linear = LARGE / SMALL
    growth = {name: large[name] / small[name] / linear for name in ("memory_mib", "load_s")}
    limits = {
        "memory_mib": MEMORY_MIB_MAX,
        "load_s": LOAD_S_MAX,
        "stage_change_ms": STAGE_CHANGE_MS_MAX,
        "feed_step_ms": STAGE_CHANGE_MS_MAX,
        "lookup_us": LOOKUP_US_MAX,
        "next_step_ms": NEXT_STEP_MS_MAX,
        "drained_scan_ms": NEXT_STEP_MS_MAX,
    }
    for name, limit in limits.items():
        print(f"{name:16} {large[name]:10.3f} of {limit:g} at {LARGE:,} tablets ({small[name]:.3f} at {SMALL:,})")
    for name, ratio in growth.items():
        print(f"growth {name:9} {ratio:10.2f} of {GROWTH_MAX:g} times linear")
    within = all(large[name] <= limit for name, limit in limits.items()) and max(growth.values()) <= GROWTH_MAX
    print(json.dumps({"tablets": LARGE, **large, "growth": growth, "limits": limits, "ok": within}))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())

"""Rows on a real cluster of three nodes with two shards each: written and read anywhere while processes die.

The tests share one cluster and leave it whole.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.cluster.conftest import LocalNodes, eventually, is_alive
from tests.cluster.group0_load import ask
from tests.cluster.rows_load import (
    ALL,
    COLUMNS,
    ONE,
    QUORUM,
    SCHEMA_MS,
    Numbers,
    RowsLoad,
    TableSpec,
    ask_shard,
    create_table,
    read_numbers,
    read_once,
    write_numbers,
)

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import DeadlineExceeded, EblaError
from ebla.model.identity import TopologyVersion
from ebla.wire.row_messages import ReadRowsRequest
from ebla.wire.schema_messages import CreateTableRequest, DropTableRequest, SchemaRequest
from ebla.wire.verbs import READ_ROWS, SCHEMA

BACK_S = 3.0
"""The time within which a killed shard serves again."""
PATIENCE = 4
"""Allowance for a busy machine; the benchmark measures the figure itself."""
NODES, SHARDS = 3, 2


class Cluster:
    def __init__(self, nodes: LocalNodes) -> None:
        self.local = nodes
        self.processes: list[subprocess.Popen[bytes]] = [nodes.start(number) for number in range(NODES)]
        nodes.wait_all_up()
        self.on_tablets = create_table(self.node(0), TableSpec(keyspace="tablets"))
        self.on_vnodes = create_table(self.node(1), TableSpec(keyspace="vnodes", on_tablets=False))

    def node(self, number: int) -> LocalNode:
        return self.local.nodes[number]

    def shards(self, *but: int) -> list[tuple[LocalNode, int]]:
        return [(self.node(node), shard) for node in range(NODES) if node not in but for shard in range(SHARDS)]

    def start(self, number: int) -> None:
        self.processes[number] = self.local.start(number)

    def serves(self, at: tuple[LocalNode, int], rows: Numbers, level: ConsistencyLevel = ONE) -> bool:
        try:
            read_once(rows, at, range(20), level)
        except EblaError:
            return False
        return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = LocalNodes(tmp_path_factory.mktemp("rows"), NODES, shards=SHARDS)
    try:
        yield Cluster(nodes)
    finally:
        nodes.end_all()


def test_three_nodes_form_one_ring_and_every_process_has_its_version(cluster: Cluster) -> None:
    nodes = cluster.local.view().nodes
    assert [(node.ring.normal, node.ring.members) for node in nodes if node.ring is not None] == [(3, 3)] * 3
    versions = {process.version for node in nodes for process in node.processes if process.name != "control"}
    assert versions == {node.ring.version for node in nodes if node.ring is not None}
    assert [len(node.processes) for node in nodes] == [1 + SHARDS + 1] * 3


@pytest.mark.parametrize("placed", ["tablets", "vnodes"])
def test_what_one_shard_wrote_every_shard_reads(cluster: Cluster, placed: str) -> None:
    rows = cluster.on_tablets if placed == "tablets" else cluster.on_vnodes
    keys = range(1_000, 1_060)
    for turn, at in enumerate(cluster.shards()):
        write_numbers(rows, at, dict.fromkeys(keys[turn * 10 : turn * 10 + 10], 1 + turn))
    for at in cluster.shards():
        assert read_numbers(rows, at, keys) == [1 + place // 10 for place in range(60)]
    write_numbers(rows, cluster.shards()[0], dict.fromkeys(keys, 100), ALL)
    for at in cluster.shards():
        assert read_numbers(rows, at, keys, ONE) == [100] * 60


def test_a_killed_shard_serves_again_in_time_and_has_its_writes(cluster: Cluster) -> None:
    rows, keys = cluster.on_tablets, range(2_000, 2_020)
    write_numbers(rows, cluster.shards()[0], dict.fromkeys(keys, 5), ALL)
    victim = (cluster.node(1), 0)
    with RowsLoad(rows, cluster.shards()) as load:
        eventually(lambda: load.acknowledged > 50, "the load runs")
        pid = cluster.local.pid("shard-0", 1)
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        eventually(lambda: not is_alive(pid), "it is gone", 2.0)
        eventually(lambda: cluster.serves(victim, rows), "it is back")
        back_s = time.monotonic() - killed_at
        pause_s = load.longest_pause_s(killed_at, time.monotonic())
    print(f"a killed shard serves again after {back_s:.2f} s; the others' longest pause {pause_s:.2f} s")
    assert back_s < BACK_S * PATIENCE
    cluster.local.wait_all_up()
    load.check(victim)
    assert read_numbers(rows, victim, keys, ONE) == [5] * 20


def test_a_shard_that_hangs_is_killed_and_started_again(cluster: Cluster) -> None:
    hung = cluster.local.pid("shard-1", 2)
    with RowsLoad(cluster.on_vnodes, cluster.shards()) as load:
        eventually(lambda: load.acknowledged > 50, "the load runs")
        os.kill(hung, signal.SIGSTOP)
        stopped_at = time.monotonic()
        eventually(lambda: not is_alive(hung), "the silent shard is killed")
        eventually(lambda: cluster.serves((cluster.node(2), 1), cluster.on_vnodes), "its successor serves")
        pause_s = load.longest_pause_s(stopped_at, time.monotonic())
    print(f"longest pause of writes after a shard hung: {pause_s:.2f} s; {load.errors}")
    cluster.local.wait_all_up()
    load.check((cluster.node(2), 1))
    (child,) = [process for process in cluster.local.node(2).processes if process.name == "shard-1"]
    assert (child.pid != hung, child.restarts) == (True, 1)
    assert child.last_exit.startswith("was silent for ")
    assert child.last_exit.endswith(" ms and was killed")


def test_a_change_of_the_schema_waits_for_every_process_bulk_included(cluster: Cluster) -> None:
    spec = CreateTableRequest(keyspace="tablets", name="waits", columns=COLUMNS, if_not_exists=True)
    bulk = cluster.local.pid("bulk", 1)
    os.kill(bulk, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded):
            ask(cluster.node(0), SCHEMA, SchemaRequest(spec), 1_200)
    finally:
        os.kill(bulk, signal.SIGCONT)
    answer = ask(cluster.node(0), SCHEMA, SchemaRequest(spec), SCHEMA_MS)
    assert not answer.changed, "it was made, and only not confirmed"
    bulk = cluster.local.pid("bulk", 1)
    os.kill(bulk, signal.SIGKILL)
    dropped = ask(cluster.node(2), SCHEMA, SchemaRequest(DropTableRequest("tablets", "waits")), SCHEMA_MS)
    assert (dropped.changed, dropped.unreached) == (True, ())
    assert cluster.local.pid("bulk", 1) != bulk, "its successor has it"
    cluster.local.wait_all_up()


def test_children_go_with_their_control_and_the_rows_are_there_after_a_new_start(cluster: Cluster) -> None:
    rows, keys = cluster.on_tablets, range(3_000, 3_020)
    write_numbers(rows, cluster.shards()[0], dict.fromkeys(keys, 9), ALL)
    before = cluster.local.node(0)
    children = [process.pid for process in before.processes if process.name != "control" and process.pid is not None]
    with RowsLoad(rows, cluster.shards()) as load:
        eventually(lambda: load.acknowledged > 50, "the load runs")
        cluster.processes[0].kill()
        cluster.processes[0].wait(60)
        assert eventually(lambda: not any(map(is_alive, children)), "the children follow their control") < 5
        eventually(cluster.node(0).is_gone, "every lock is free")
        cluster.start(0)
        cluster.local.wait_all_up()
    load.check((cluster.node(0), 1))
    assert cluster.local.node(0).host == before.host
    for shard in range(SHARDS):
        assert read_numbers(rows, (cluster.node(0), shard), keys, ONE) == [9] * 20


def test_writes_go_on_without_a_node_and_it_gets_what_it_missed_by_read_repair(cluster: Cluster) -> None:
    rows, keys = cluster.on_tablets, range(4_000, 4_030)
    write_numbers(rows, cluster.shards()[0], dict.fromkeys(keys, 1), ALL)
    with RowsLoad(rows, cluster.shards(2)) as load:
        eventually(lambda: load.acknowledged > 50, "the load runs")
        for process in cluster.local.node(2).processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        cluster.processes[2].wait(60)
        eventually(lambda: cluster.local.view_from(0, 1).nodes[2].held_up_by == 0, "both others hold it to be down")
        before = load.acknowledged
        eventually(lambda: load.acknowledged > before + 100, "writes go on without it")
        pause_s = load.longest_pause_s(killed_at, time.monotonic())
        write_numbers(rows, cluster.shards()[0], dict.fromkeys(keys, 2))
        eventually(cluster.node(2).is_gone, "every lock is free")
        cluster.start(2)
        cluster.local.wait_all_up()
    print(f"longest pause of writes after the kill of a node: {pause_s:.2f} s")
    assert [held_by(cluster, 2, rows, key) for key in keys] == [1] * 30, "it was not there"
    eventually(lambda: cluster.serves(cluster.shards()[0], rows, ALL), "the others have found it again")
    assert read_numbers(rows, cluster.shards()[0], keys, ALL) == [2] * 30
    for key in keys:
        eventually(partial(_holds, cluster, rows, key), f"key {key} is repaired on the node that missed it")
    load.check((cluster.node(2), 0))


def _holds(cluster: Cluster, rows: Numbers, key: int) -> bool:
    return held_by(cluster, 2, rows, key) == 2


def held_by(cluster: Cluster, number: int, rows: Numbers, key: int) -> int | None:
    """What the node's own replica of the key holds, read without a router."""
    ring = cluster.local.node(number).ring
    assert ring is not None
    for shard in range(SHARDS):
        request = ReadRowsRequest(
            version=TopologyVersion(ring.version), table=rows.table, spans=(rows.span_of(key),), rows_max=10, now_s=1
        )
        try:
            answer = ask_shard(cluster.node(number), shard, READ_ROWS, request)
        except EblaError:
            continue  # the other shard has it
        return rows.number_in(answer.items[0][1]) if answer.items else None
    raise AssertionError(f"no shard of node {number} has key {key}")


Make = Callable[..., LocalNodes]


def test_a_node_with_fewer_shards_than_its_tablets_need_says_so_and_stops(make_nodes: Make) -> None:
    nodes = make_nodes(shards=2)
    process = nodes.start()
    nodes.wait_all_up()
    rows = create_table(nodes.nodes[0], TableSpec(keyspace="one", replicas=1))
    write_numbers(rows, (nodes.nodes[0], 0), dict.fromkeys(range(20), 3), QUORUM)
    process.terminate()
    assert process.wait(60) == 0
    path = nodes.nodes[0].options_path
    path.write_text(path.read_text().replace("\nshards = 2\n", "\nshards = 1\n"))
    assert nodes.start().wait(60) == 3
    assert "tablets live on shards of" in nodes.node().trouble
    path.write_text(path.read_text().replace("\nshards = 1\n", "\nshards = 2\n"))
    nodes.start()
    nodes.wait_all_up()
    assert read_numbers(rows, (nodes.nodes[0], 1), range(20), ONE) == [3] * 20

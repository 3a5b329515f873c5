"""Nodes to which others are added: a table on vnodes with data, a load, and what the new nodes have received."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.group0_cluster import NodeProcess
from benchmarks.row_client import RowBodies, TableShape, Traffic, batches, load, traffic_to
from benchmarks.transfer_cluster import ROWS_PER_REQUEST, VALUE_BYTES, TransferCluster
from ebla.cli.cluster.local_cluster import AddedNodesSpec, LocalNode, add_nodes
from ebla.cli.cluster.node_calls import call_socket, local_transport, read_snapshot, run_async
from ebla.cli.cluster.topology_reports import fetch_report
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.client.topology_view import latest_request
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, TableId
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import RequestOutcome
from ebla.wire.transfer_messages import BulkStatusRequest
from ebla.wire.verbs import BULK_STATUS

RING = 1 << 64
JOIN_S = 1_800.0
FILL_S = 3_600.0
FILLING_AT_ONCE = 4
LOOK_S = 0.05
KEYS = 2_000


def host_of(node: LocalNode) -> HostId:
    identity = node.folder.read_identity()
    assert identity is not None
    return identity.host


class NewNode:
    """A node that joins."""

    def __init__(self, cluster: "JoinCluster", node: LocalNode) -> None:
        self._cluster = cluster
        self.node = node
        self.host = host_of(node)
        self.began_s = time.monotonic()
        self.process = NodeProcess(node)

    def wait_serves(self) -> float:
        """Seconds from its start until it is in the ring, is seen by all others and serves."""
        wait_for(f"{self.node.name} serves", self._cluster.all_up)
        took_s = time.monotonic() - self.began_s
        request = self.request()
        if request is None or request.outcome is not RequestOutcome.DONE:
            raise RuntimeError(f"{self.node.name} did not join: {request}")
        return took_s

    def request(self) -> NodeRequest | None:
        return latest_request(run_async(fetch_report(self._cluster.folder, None)), self.host)

    def received_bytes(self) -> int:
        """Of all transfers; 0 while it does not answer."""

        async def ask() -> int:
            async with local_transport() as transport:
                status = await call_socket(
                    transport, self.node, self.node.folder.bulk_socket, BULK_STATUS, BulkStatusRequest(None)
                )
                return status.received_bytes

        try:
            return run_async(ask())
        except EblaError:
            return 0


class JoinCluster(TransferCluster):
    def start_join(self) -> NewNode:
        (node,) = add_nodes(self.folder, AddedNodesSpec(count=1), ())
        self.local.append(node)
        new = NewNode(self, node)
        self.nodes.append(new.process)
        return new

    def restart_s(self, number: int) -> float:
        """Seconds from the start of a stopped member until it serves."""
        self.nodes[number].end()
        began = time.monotonic()
        self.nodes[number].start_again()
        wait_for("the member serves", self.all_up)
        return time.monotonic() - began

    def leader(self) -> int:
        """Its number."""
        report = run_async(fetch_report(self.folder, None))
        return next(number for number, node in enumerate(self.local) if host_of(node) == report.coordinator)

    # ---- tables

    def create(self, keyspace: str, columns: str, *, on_tablets: bool) -> TableId:
        tablets = "{'initial': 8}" if on_tablets else "{'enabled': false}"
        with open_cql(self.folder) as cql:
            cql.execute(
                f"CREATE KEYSPACE {keyspace} WITH tablets = {tablets} AND replication = "
                "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
            )
            cql.execute(f"CREATE TABLE {keyspace}.t ({columns})")
        return table_schema(read_snapshot(self.folder), f"{keyspace}.t").id

    def fill(self, keyspace: str, size_bytes: int) -> None:
        """At all replicas, with bytes that do not compress."""

        def values() -> Iterator[Sequence[Sequence[bytes]]]:
            for start in range(0, size_bytes // VALUE_BYTES, ROWS_PER_REQUEST):
                keys = range(start, start + ROWS_PER_REQUEST)
                yield [(key.to_bytes(8), os.urandom(VALUE_BYTES)) for key in keys]

        bodies = batches(f"INSERT INTO {keyspace}.t (k, v) VALUES (?, ?)", values, ConsistencyLevel.ALL)
        filled = asyncio.run(load([traffic_to(self.local[0], 0, bodies)], FILLING_AT_ONCE, FILL_S))
        if filled.failed:
            raise RuntimeError(f"{filled.failed} writes of the filling failed: {filled.failure}")

    def served_traffic(self, keyspace: str) -> list[Traffic]:
        """Half reads, half writes, at QUORUM, of a small table on vnodes."""
        self.create(keyspace, "k bigint, c int, v text, PRIMARY KEY (k, c)", on_tablets=False)
        bodies = RowBodies(table_schema(read_snapshot(self.folder), f"{keyspace}.t"))
        node, keys = self.local[0], list(range(KEYS))
        asyncio.run(load([traffic_to(node, 0, bodies.every(keys, ConsistencyLevel.ALL))], 4, 60.0))
        return [
            traffic_to(node, 0, bodies.writes(keys, TableShape(), ConsistencyLevel.QUORUM)),
            traffic_to(node, 0, bodies.reads(keys, ConsistencyLevel.QUORUM)),
        ]

    def share_of(self, table: TableId, host: HostId) -> float:
        """Of the ring, as a replica of the table."""
        ranges = ReplicaSets(read_snapshot(self.folder)).of(table).ranges_of(host)
        return sum((each.end - each.start) % RING or RING for each in ranges) / RING


def wait_for(what: str, reached: Callable[[], bool], seconds: float = JOIN_S) -> None:
    ends_at = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > ends_at:
            raise RuntimeError(f"not within {seconds} s: {what}")
        time.sleep(LOOK_S)

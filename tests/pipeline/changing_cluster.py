"""Real nodes with rows on vnodes, which nodes join and leave."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.conftest import LocalNodes
from tests.cluster.joining import LEASES, NewNode, change_setting
from tests.pipeline.clusters import SETTINGS, VALUE_BYTES, PipelineCluster, Replicas, new_keyspace, some_rows
from tests.pipeline.quorum_load import QuorumLoad
from tests.pipeline.served_nodes import NODES, STEADY

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.cli.cluster.node_calls import read_snapshot
from ebla.model.identity import HostId
from ebla.model.token import token_of
from ebla.topology.routing.replica_sets import ReplicaSets

VNODES = "vnodes"
NOTICING = ("limits.peer_silence_ms=3000",)
"""Long enough that a busy machine does not make nodes look down, and shorter than the time that a load allows."""


class ChangingCluster(PipelineCluster):
    """Nodes with a pipeline and a table on vnodes, of which all replicas have the same rows."""

    def __init__(self, local: LocalNodes, size_bytes: int) -> None:
        super().__init__(local)
        change_setting(self.node(0), "leases", LEASES)
        new_keyspace(self, VNODES, tablets=0)
        self.table = Replicas(self, VNODES, "t")
        self.rows = some_rows(range(size_bytes // VALUE_BYTES), 2_000, 1)
        for number in range(NODES):
            self.table.write(number, self.rows)

    @property
    def nodes(self) -> list[LocalNode]:
        return self.local.nodes

    def new_node(self) -> NewNode:
        new = NewNode(self.local)
        self.processes.append(new.process)
        return new

    def forget(self, new: NewNode) -> None:
        """Its process has ended."""
        self.processes.remove(new.process)

    def load(self) -> QuorumLoad:
        return QuorumLoad([node.options.address for node in self.nodes], self.table.name)

    def kill_and_start(self, node: LocalNode, load: QuorumLoad | None = None) -> None:
        number = self.nodes.index(node)
        if load is not None:
            load.note_kill()
        self.kill_node(number)
        self.processes[number] = self.local.start(number)

    def is_answering(self, node: LocalNode) -> bool:
        return self.local.view_from(self.nodes.index(node)).nodes[0].group0 is not None

    def owners(self) -> dict[int, list[HostId]]:
        """Of each row, by key."""
        replicas = ReplicaSets(read_snapshot(self.local.data)).of(self.table.table)
        return {key: [one.host for one in replicas.reading(token_of(key.to_bytes(4)))] for key in self.rows}

    def check_rows(self) -> None:
        """Ranges that a node has lost to another stay on its disk for a time."""
        owners = self.owners()
        assert {len(hosts) for hosts in owners.values()} == {NODES}
        for number, node in enumerate(self.nodes):
            host, held = self.host(number), self.table.held(number)
            owned = [key for key in self.rows if host in owners[key]]
            wrong = [key for key in owned if held.get(key) != self.rows[key]]
            assert owned, f"{node.name} is a replica of some rows"
            assert not wrong, f"{node.name}: {len(wrong)} of {len(owned)} rows are missing or wrong: {wrong[:5]}"


@contextmanager
def running(folder: Path, size_bytes: int, settings: tuple[str, ...] = ()) -> Iterator[ChangingCluster]:
    local = LocalNodes(folder / "nodes", NODES, (*STEADY, *SETTINGS, *NOTICING, *settings))
    try:
        yield ChangingCluster(local, size_bytes)
    finally:
        local.end_all()

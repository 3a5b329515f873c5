"""How long a new node takes to load a large group 0, beside a lower bound: send, decode and sync, one after another.

python -m benchmarks.catch_up sink TLS_FOLDER ADDRESS FILE     (started by the benchmark itself)
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.group0_cluster import DEADLINE_MS, START_S, Clients, EblaCluster, NodeProcess
from ebla.cli.cluster.local_cluster import LocalNode, assign_identities, find_nodes
from ebla.group0 import snapshot
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry
from ebla.model.identity import Address, HistoryId
from ebla.model.transaction import PutKey, Transaction
from ebla.observe.event_reporter import discard_event
from ebla.ports.transport import Link
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.group0_messages import ExecuteRequest, MembersRequest
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_MEMBERS

VALUE_BYTES = 1_000
KEYS_PER_TRANSACTION = 400
LOADERS = 4
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""Log bytes after which a node takes a snapshot: the default of group 0."""
SINK_PORT = 7099
END = b"end"
LOOK_S = 0.01
"""Between two checks of the node's progress. Each costs the leader a little, and there are two cores for all."""
ONE_VALUE = random.Random(7).randbytes(VALUE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    state_mb: float
    least_s: float
    """Sending the state over one link with mutual TLS, decoding it, and syncing it to disk, one after another."""
    took_s: float
    """From becoming a learner to having the whole state."""
    stall_ms: float
    """The longest stall of any node's loop, without the time spent waiting for a core."""

    @property
    def ratio(self) -> float:
        return self.took_s / self.least_s


def measure_catch_up(cluster: EblaCluster, state_mb: int) -> CatchUp:
    keys = state_mb * 1_000_000 // VALUE_BYTES
    cluster.runner.run(_fill(cluster, keys))
    least_before_s = _least_s(cluster, keys)
    node = _fourth_node(cluster.folder)
    stalls = [_stall_file(each.node) for each in cluster.nodes] + [_stall_file(node)]
    joined = NodeProcess(node, watched_entry(node))
    try:
        began, took_s = cluster.runner.run(_wait_caught_up(cluster, node))
    finally:
        joined.end()
    least_s = (least_before_s + _least_s(cluster, keys)) / 2
    stall_ms = max((_longest_stall_ms(path, began, began + took_s) for path in stalls), default=0.0)
    return CatchUp(state_mb=keys * VALUE_BYTES / 1e6, least_s=least_s, took_s=took_s, stall_ms=stall_ms)


def watched_entry(node: LocalNode) -> tuple[str, ...]:
    return (sys.executable, "-m", "benchmarks.watched_node", str(_stall_file(node)), "control")


def _stall_file(node: LocalNode) -> Path:
    return node.options_path.parent.parent / f"{node.name}-stalls"


def _longest_stall_ms(path: Path, began: float, ended: float) -> float:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return max((row["own_ms"] for row in rows if began * 1000 <= row["at_ms"] <= ended * 1000), default=0.0)


async def _fill(cluster: EblaCluster, keys: int) -> None:
    """Writes every key, and the first ones again until a snapshot is due: what is measured is a state, not a log."""
    leader = await cluster.find_leader()
    transaction_bytes = KEYS_PER_TRANSACTION * (VALUE_BYTES + len(_key(0)))
    per_snapshot = SNAPSHOT_BYTES // transaction_bytes + 1
    snapshots = -(-keys // (per_snapshot * KEYS_PER_TRANSACTION))
    starts = iter(range(0, snapshots * per_snapshot * KEYS_PER_TRANSACTION, KEYS_PER_TRANSACTION))

    async with Clients([leader], LOADERS) as callers, asyncio.TaskGroup() as tasks:

        async def load(caller: RpcClientConnection) -> None:
            for start in starts:
                numbers = [number % keys for number in range(start, start + KEYS_PER_TRANSACTION)]
                changes = tuple(PutKey(_key(number), ONE_VALUE) for number in numbers)
                await caller.call(GROUP0_EXECUTE, ExecuteRequest(Transaction((), changes)), 30_000)

        for caller in callers:
            tasks.create_task(load(caller))
    gives_up_at = time.monotonic() + START_S
    while _snapshots_taken(leader) < snapshots:
        assert time.monotonic() < gives_up_at, "the leader took no snapshot"
        await asyncio.sleep(0.05)


def _snapshots_taken(node: NodeProcess) -> int:
    return (node.node.folder.run / "bench-output").read_text().count("raft.snapshot_taken")


def _key(number: int) -> str:
    return f"user/bench/{number * 7919 % 1_000_003:08d}"


def _fourth_node(folder: Path) -> LocalNode:
    nodes = find_nodes(folder)
    first, network = nodes[0], nodes[0].options.address.rpartition(".")[0]
    (folder / "node4").mkdir(mode=0o700)
    text = first.options_path.read_text().replace(f'address = "{network}.1"', f'address = "{network}.4"')
    (folder / "node4" / "options.toml").write_text(text.replace('rack = "rack1"', 'rack = "rack4"'))
    nodes = find_nodes(folder)
    assign_identities(nodes)
    return nodes[-1]


async def _wait_caught_up(cluster: EblaCluster, node: LocalNode) -> tuple[float, float]:
    identity = node.folder.read_identity()
    assert identity is not None
    leader = await cluster.find_leader()
    began = 0.0
    gives_up_at = time.monotonic() + 2 * START_S
    async with Clients([leader], 1) as (client,):
        while time.monotonic() < gives_up_at:
            report = await client.call(GROUP0_MEMBERS, MembersRequest(), DEADLINE_MS)
            now = time.monotonic()
            for each in report.members:
                if each.member.host == identity.host:
                    began = began or now
                    if each.lag == 0:
                        return began, now - began
            await asyncio.sleep(LOOK_S)
    raise RuntimeError(f"node 4 did not catch up; see {node.folder.run}/bench-output")


# ---- the least it could take


def _chunks(keys: int) -> Iterator[bytes]:
    history = HistoryId(SystemRng().uuid())
    store = Group0Store((HistoryStart(history, 0),))
    store.index = 1
    store.entries = {_key(number): KeyEntry(ONE_VALUE, store.revision) for number in range(keys)}
    return snapshot.encode(store)


def _least_s(cluster: EblaCluster, keys: int) -> float:
    first, second = cluster.nodes[0].node, cluster.nodes[1].node
    address = Address(f"{second.options.address}", SINK_PORT)
    command = [sys.executable, "-m", "benchmarks.catch_up", "sink", str(second.folder.tls), address.host]
    with subprocess.Popen([*command, str(cluster.folder / "sink-file")], stdout=subprocess.PIPE, text=True) as sink:
        assert sink.stdout is not None
        assert sink.stdout.readline() == "ready\n"
        chunks = list(_chunks(keys))
        cluster.runner.run(_send_all(NodeTls(TlsFolder(first.folder.tls)), address, chunks))
        return float(sink.stdout.readline())


class _Sending:
    def link_closed(self, cause: str) -> None: ...

    def frame_received(self, frame: bytes) -> None: ...


async def _send_all(tls: NodeTls, address: Address, chunks: list[bytes]) -> None:
    links: list[Link] = []

    def opened(link: Link) -> _Sending:
        links.append(link)
        return _Sending()

    async with TcpTransport(tls, discard_event) as transport:
        await transport.connect(address, opened)
        links[0].send(b"begin")
        for chunk in chunks:
            links[0].send(chunk)
            await links[0].wait_drained()
        links[0].send(END)
        await links[0].wait_drained()


class _Sink:
    """Receives frames, and processes them step by step after the last one."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.began = 0.0
        self.ended = asyncio.Event()

    def link_closed(self, cause: str) -> None: ...

    def frame_received(self, frame: bytes) -> None:
        if not self.began:
            self.began = time.perf_counter()
        elif frame == END:
            self.ended.set()
        else:
            self.chunks.append(frame)


async def _receive(tls_folder: str, address: Address, file: str) -> None:
    sink = _Sink()
    async with TcpTransport(NodeTls(TlsFolder(Path(tls_folder))), discard_event) as transport:
        await transport.listen(address, lambda _link: sink)
        print("ready", flush=True)
        await sink.ended.wait()
        builder = snapshot.StoreBuilder()
        for chunk in sink.chunks:
            builder.add(chunk)
        builder.finish()
        _write_and_sync(Path(file), sink.chunks)
        print(time.perf_counter() - sink.began, flush=True)


def _write_and_sync(path: Path, chunks: list[bytes]) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as out:
        out.writelines(chunks)
        out.flush()
        os.fsync(out.fileno())


def main() -> None:
    _, _, tls_folder, host, file = sys.argv
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_receive(tls_folder, Address(host, SINK_PORT), file))


if __name__ == "__main__":
    main()

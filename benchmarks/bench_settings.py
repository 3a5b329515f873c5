"""Cluster settings of five nodes with 10,000 keys, real processes.

    python -m benchmarks.bench_settings [--quick] [--folder DIR]

Each figure is a ratio within the run: a change until every node's watch has shown it, beside a put to group 0 until
every node's watch has shown that; a full sync beside the same bytes over one mTLS stream and their decoding; a purge of
all keys beside that sync; the CPU of `merge` beside that of decoding. The last line is JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.group0_cluster import DEADLINE_MS, START_S, Clients, EblaCluster, NodeProcess
from benchmarks.linear_fit import deviation_from_linear
from benchmarks.raw_tls import raw_tls_s
from ebla.control.settings.durable_store import DurableSettings
from ebla.model.errors import EblaError
from ebla.model.transaction import PutKey, Transaction
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.settings_store.entry import Entry, Stamp, decode_entries, encode_entries
from ebla.settings_store.merge import merge
from ebla.settings_store.node_store import ReceivedEntries, SettingsStore
from ebla.settings_store.purge import PurgeResult
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest, WatchRequest
from ebla.wire.peers import PeersContext, connect
from ebla.wire.settings_messages import (
    PurgeReport,
    SettingChange,
    SettingsListRequest,
    SettingsPullRequest,
    SettingsPurgeRequest,
    SettingsPurgeStatusRequest,
    SettingsWatchRequest,
    SettingsWriteRequest,
)
from ebla.wire.verbs import (
    GROUP0_EXECUTE,
    GROUP0_READ,
    GROUP0_WATCH,
    SETTINGS_LIST,
    SETTINGS_PULL,
    SETTINGS_PURGE,
    SETTINGS_PURGE_STATUS,
    SETTINGS_WATCH,
    SETTINGS_WRITE,
)

NODES = 5
KEYS = 10_000
KEYS_PER_WRITE = 250
VALUE = "v" * 64
WATCHED = "user/watched"
ARM_S = 0.02
"""For the watches to arrive before the change."""
VISIBLE_P50_MAX, VISIBLE_P99_MAX = 0.8, 1.5
SYNC_MAX, PURGE_MAX, MERGE_MAX = 3.0, 4.0, 3.0
LINEAR_MAX = 0.25
SIZES = (1_000, 10_000, 100_000)


def _key(number: int) -> str:
    return f"user/bench/{number:06d}"


# ---- until a change is visible


async def _settings_visible_s(clients: Sequence[RpcClientConnection], value: str) -> float:
    request = SettingsListRequest(prefix=WATCHED)
    serials = [(await client.call(SETTINGS_LIST, request, DEADLINE_MS)).serial for client in clients]

    async def watch(client: RpcClientConnection, serial: int) -> None:
        while True:
            request = SettingsWatchRequest(after=serial, prefix=WATCHED, wait_ms=2_000)
            answer = await client.call(SETTINGS_WATCH, request, DEADLINE_MS)
            serial = answer.serial
            if any(view.value == value.encode() for view in answer.settings):
                return

    request_of = SettingsWriteRequest(changes=(SettingChange(WATCHED, value),), wait_ms=0)
    async with asyncio.TaskGroup() as tasks:
        for client, serial in zip(clients, serials, strict=True):
            tasks.create_task(watch(client, serial))
        await asyncio.sleep(ARM_S)
        began = time.perf_counter()
        tasks.create_task(clients[0].call(SETTINGS_WRITE, request_of, DEADLINE_MS))
    return time.perf_counter() - began


async def _group0_visible_s(clients: Sequence[RpcClientConnection], leader: RpcClientConnection, value: str) -> float:
    request = Group0ReadRequest(keys=(WATCHED,))
    since = [(await client.call(GROUP0_READ, request, DEADLINE_MS)).revision for client in clients]

    async def watch(client: RpcClientConnection, number: int) -> None:
        after = since[number]
        while True:
            request = WatchRequest(prefix=WATCHED, after=after, wait_ms=2_000)
            answer = await client.call(GROUP0_WATCH, request, DEADLINE_MS)
            after = answer.revision
            if any(change.value == value.encode() for change in answer.changes):
                return

    put = ExecuteRequest(Transaction((), (PutKey(WATCHED, value.encode()),)))
    async with asyncio.TaskGroup() as tasks:
        for number, client in enumerate(clients):
            tasks.create_task(watch(client, number))
        await asyncio.sleep(ARM_S)
        began = time.perf_counter()
        tasks.create_task(leader.call(GROUP0_EXECUTE, put, DEADLINE_MS))
    return time.perf_counter() - began


async def measure_visible(figures: Figures, cluster: EblaCluster, samples: int) -> None:
    leader_node = await cluster.find_leader()
    ours: list[float] = []
    theirs: list[float] = []
    async with Clients(cluster.nodes, NODES) as clients, Clients([leader_node], 1) as (leader,):
        for number in range(samples + 5):
            ours.append(await _settings_visible_s(clients, f"{VALUE}{number}"))
            theirs.append(await _group0_visible_s(clients, leader, f"{VALUE}{number}"))
    ours, theirs = ours[5:], theirs[5:]  # the first ones open connections
    for name, part, limit in (("p50", 0.5, VISIBLE_P50_MAX), ("p99", 0.99, VISIBLE_P99_MAX)):
        own_ms, their_ms = (
            figures.note(f"visible_{name}_ms{of}", 1000 * sorted(took)[int(part * len(took))])
            for of, took in (("", ours), ("_group0", theirs))
        )
        judged = figures.at_most(f"visible_{name}_ratio", own_ms / their_ms, limit)
        print(
            f"visible on all nodes, {name}: {own_ms:6.2f} ms, group 0 {their_ms:6.2f} ms; "
            f"ratio {own_ms / their_ms:.2f}  {judged}"
        )


# ---- sync and purge


async def _write_all(cluster: EblaCluster, value: str | None) -> None:
    """From the first node. Returns once every node has all of it."""
    async with Clients(cluster.nodes[:1], 1) as (client,):
        for start in range(0, KEYS, KEYS_PER_WRITE):
            changes = tuple(SettingChange(_key(number), value) for number in range(start, start + KEYS_PER_WRITE))
            answer = await client.call(SETTINGS_WRITE, SettingsWriteRequest(changes=changes, wait_ms=20_000), 30_000)
            if answer.missing:
                raise RuntimeError(f"not every node has the keys: {answer.missing}")


async def _link(stack: AsyncExitStack, to: NodeProcess, own: NodeProcess) -> RpcClientConnection:
    """A connection as between two nodes."""
    identity = own.node.folder.read_identity()
    assert identity is not None
    tls = NodeTls(TlsFolder(own.node.folder.tls))
    transport = await stack.enter_async_context(TcpTransport(tls, discard_event))
    introduction = Introduction(host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name)
    context = PeersContext(transport=transport, rng=SystemRng(), introduction=introduction, report=discard_event)
    caller, _ = await connect(context, to.node.options.control_address, ConnectionTarget(Lane.DATA))
    stack.callback(caller.close, "done")
    return caller


async def _pull_all(caller: RpcClientConnection, durable: DurableSettings) -> list[bytes]:
    """As a node does that has none of the keys: each page is merged durably before the next."""
    pages: list[bytes] = []
    after = ""
    while True:
        page = await caller.call(SETTINGS_PULL, SettingsPullRequest(after), 30_000)
        pages.append(page.entries)
        received = ReceivedEntries(decode_entries(page.entries), page.header.watermark_us)
        await durable.run(partial(SettingsStore.receive, messages=[received], wall_us=0))
        after = page.next_after
        if not after:
            return pages


async def _sync_s(cluster: EblaCluster, folder: Path) -> tuple[float, list[bytes]]:
    puller = cluster.nodes[1]
    identity = puller.node.folder.read_identity()
    assert identity is not None
    async with AsyncExitStack() as stack:
        caller = await _link(stack, cluster.nodes[0], puller)
        clock, rng = SystemClock(), SystemRng()
        environment = Environment(clock=clock, rng=rng, disk=FileDisk(), transport=TcpTransport(None, discard_event))
        durable = await DurableSettings.open(environment, str(folder), identity.host)
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(durable.work())
            await durable.replace(lambda store: store.restored(None, 0))
            began = time.perf_counter()
            pages = await _pull_all(caller, durable)
            took_s = time.perf_counter() - began
            assert len(durable.store.entries) >= KEYS
            working.cancel()
    return took_s, pages


def _bytes_s(cluster: EblaCluster, pages: Sequence[bytes], folder: Path) -> float:
    """The same bytes over one mTLS stream, and their decoding."""
    source = folder / "pages"
    source.write_bytes(b"".join(pages))
    options = cluster.nodes[1].node
    sent_s = raw_tls_s(options.folder.tls, options.options.address, [source], folder / "received")
    began = time.perf_counter()
    for page in pages:
        decode_entries(page)
    return sent_s + time.perf_counter() - began


def measure_sync(figures: Figures, cluster: EblaCluster, folder: Path, rounds: int) -> float:
    syncs, least = [], []
    for number in range(rounds):
        took_s, pages = cluster.runner.run(_sync_s(cluster, folder / f"copy{number}"))
        syncs.append(took_s)
        least.append(_bytes_s(cluster, pages, folder))
    sync_s = figures.note("sync_s", statistics.median(syncs))
    least_s = figures.note("sync_least_s", statistics.median(least))
    ratio = statistics.median(took / bound for took, bound in zip(syncs, least, strict=True))
    judged = figures.at_most("sync_ratio", ratio, SYNC_MAX)
    print(
        f"full sync of {KEYS:,} keys: {1000 * sync_s:.0f} ms; to send and decode as much takes "
        f"{1000 * least_s:.0f} ms; ratio {ratio:.2f}  {judged}"
    )
    return sync_s


async def _purge(cluster: EblaCluster) -> PurgeReport:
    request = SettingsPurgeRequest(round=uuid.uuid4(), timeout_ms=60_000, older_than_ms=0)
    seen = 0
    async with Clients(cluster.nodes[:1], 1) as (client,):
        while True:
            answer = await client.call(
                SETTINGS_PURGE,
                SettingsPurgeRequest(round=request.round, timeout_ms=60_000, older_than_ms=0, seen=seen),
                DEADLINE_MS,
            )
            seen += len(answer.steps)
            if answer.report is not None:
                return answer.report


async def _purge_s(cluster: EblaCluster) -> float:
    """Of the round that purges, until every node has erased all."""
    gives_up_at = time.monotonic() + START_S
    async with Clients(cluster.nodes, NODES) as clients:
        while True:
            began = time.perf_counter()
            try:
                report = await _purge(cluster)
            except EblaError as error:
                report = PurgeReport(result=str(error))
            if report.result == PurgeResult.PURGED:
                break
            if time.monotonic() > gives_up_at:
                raise RuntimeError(f"no round purged: {report}")
            await asyncio.sleep(0.5)
        request = SettingsPurgeStatusRequest(ask_leader=False)
        for client in clients:
            while (await client.call(SETTINGS_PURGE_STATUS, request, DEADLINE_MS)).waiting:
                pass
        return time.perf_counter() - began


def measure_purge(figures: Figures, cluster: EblaCluster, sync_s: float) -> None:
    cluster.runner.run(_write_all(cluster, None))
    took_s = figures.note("purge_s", cluster.runner.run(_purge_s(cluster)))
    judged = figures.at_most("purge_ratio", took_s / sync_s, PURGE_MAX)
    print(f"purge of {KEYS:,} tombstones: {1000 * took_s:.0f} ms; {took_s / sync_s:.2f} full syncs  {judged}")


# ---- merge


def measure_merge(figures: Figures) -> None:
    """Of entries that each have a change that the other side lacks, which costs the most."""
    actors = sorted((uuid.UUID(int=number) for number in range(1, 4)), key=lambda actor: actor.int)

    def entries(count: int, own: int) -> list[tuple[str, Entry]]:
        clock = tuple(Stamp(actor, 5 + (actor.int == own), 1_000 + own) for actor in actors)
        return [(_key(number), Entry(f"{VALUE}{own}".encode(), clock)) for number in range(count)]

    merge_us, decode_us = [], []
    for count in SIZES:
        local, remote = dict(entries(count, 1)), entries(count, 2)
        encoded = encode_entries(remote)
        took, decoded = [], []
        for _ in range(5):
            began = time.process_time()
            decode_entries(encoded)
            decoded.append(time.process_time() - began)
            began = time.process_time()
            for key, entry in remote:
                merge(local[key], entry, 0)
            took.append(time.process_time() - began)
        merge_us.append(1e6 * min(took))
        decode_us.append(1e6 * min(decoded))
    ratio = merge_us[-1] / decode_us[-1]
    figures.note("merge_us_per_key", merge_us[-1] / SIZES[-1])
    figures.note("decode_us_per_key", decode_us[-1] / SIZES[-1])
    judged = figures.at_most("merge_ratio", ratio, MERGE_MAX)
    print(
        f"merge: {merge_us[-1] / SIZES[-1]:.2f} µs a key, decoding {decode_us[-1] / SIZES[-1]:.2f} µs; "
        f"ratio {ratio:.2f}  {judged}"
    )
    deviation = deviation_from_linear(SIZES, merge_us)
    judged = figures.at_most("merge_deviation_from_linear", deviation, LINEAR_MAX)
    print(f"merge of up to {SIZES[-1]:,} keys deviates by {deviation:.0%} from linear growth  {judged}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter, and less sure")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    chosen = parser.parse_args()
    samples, rounds = (40, 3) if chosen.quick else (300, 7)
    figures = Figures()
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    measure_merge(figures)
    with (
        tempfile.TemporaryDirectory(dir=chosen.folder) as scratch,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        folder = Path(scratch).absolute()
        with closing(EblaCluster(folder / "ebla", b"", runner, nodes=NODES)) as cluster:
            cluster.wait_quiet()
            runner.run(_write_all(cluster, VALUE))
            runner.run(measure_visible(figures, cluster, samples))
            sync_s = measure_sync(figures, cluster, folder, rounds)
            measure_purge(figures, cluster, sync_s)
    figures.note("load_after", os.getloadavg()[0])
    print(json.dumps(figures.values | {"missed": figures.missed, "within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())

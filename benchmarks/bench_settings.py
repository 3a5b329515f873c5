"""Cluster settings beside what they are built on: group 0, one encrypted link, and the decoding of entries.

    python -m benchmarks.bench_settings [--quick] [--folder DIR]

Five nodes, real processes, mutual TLS between them, syncs on, 10,000 settings of 100 bytes. Clients use the nodes' Unix
sockets. Figures that are compared are measured by turns; ratios are those of medians. All five nodes and the clients
share the cores of one machine, so what many nodes do at once takes longer than it would on machines of their own.

- change: from the request to set a setting until a watch on each of the five nodes has shown it, beside a put of the
  same bytes to group 0 until each node's watch has shown that.
- sync: this process takes the place of a node that is down, pulls everything from another one and merges it into an
  empty store with syncs, page by page as a node does. Beside it: another process sends the same pages over one link
  with mutual TLS, and this one decodes them.
- purge: one round over as many tombstones, on all five nodes.
- merge: CPU per key, without disk and network, beside decoding the entry.

One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.figures import Figures
from benchmarks.group0_cluster import DEADLINE_MS, START_S, Clients, EblaCluster
from benchmarks.linear_fit import deviation_from_linear
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.control.settings.durable_store import DurableSettings
from ebla.model.errors import EblaError
from ebla.model.identity import Address, HostId
from ebla.model.transaction import PutKey, Transaction
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.ports.transport import Link
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.settings_store.entry import Entry, Stamp, decode_entries, encode_entries
from ebla.settings_store.merge import NEVER_PURGED, merge
from ebla.settings_store.node_store import Decision, ReceivedEntries, SettingsStore
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import ExecuteRequest
from ebla.wire.group0_pages import WatchPager
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
VALUE = "v" * 100
KEYS_PER_WRITE = 500
KEYS_PER_PAGE = 1_000
"""About what a message holds."""
CHANGE_P50_RATIO_MAX = 0.8
CHANGE_P99_RATIO_MAX = 1.5
SYNC_RATIO_MAX = 3.0
PURGE_RATIO_MAX = 4.0
MERGE_RATIO_MAX = 3.0
MERGE_SIZES = (1_000, 10_000, 100_000)
LINEAR_DEVIATION_MAX = 0.25
SOURCE_PORT = 7098
END = b"end"

Callers = Sequence[RpcClientConnection]


# ---- changes


class SettingsWatch:
    """Follows the settings of one node."""

    def __init__(self, caller: RpcClientConnection) -> None:
        self._caller = caller
        self._serial = 0

    async def begin(self) -> None:
        self._serial = (await self._caller.call(SETTINGS_LIST, SettingsListRequest(prefix=WATCHED), DEADLINE_MS)).serial

    async def wait_shown(self, value: str) -> None:
        while True:
            request = SettingsWatchRequest(after=self._serial, prefix=WATCHED)
            answer = await self._caller.call(SETTINGS_WATCH, request, 2 * DEADLINE_MS)
            assert not answer.reset
            self._serial = answer.serial
            if any(view.value == value.encode() for view in answer.settings):
                return


class Group0Watch:
    """Follows group 0 of one node."""

    def __init__(self, caller: RpcClientConnection) -> None:
        self._caller = caller
        self._pages = WatchPager(WATCHED)

    async def begin(self) -> None:
        while self._pages.take(await self._caller.call(GROUP0_WATCH, self._pages.request(0), DEADLINE_MS)) is None:
            pass

    async def wait_shown(self, value: str) -> None:
        while True:
            answer = self._pages.take(
                await self._caller.call(GROUP0_WATCH, self._pages.request(DEADLINE_MS), 2 * DEADLINE_MS)
            )
            if answer is not None and any(change.value == value.encode() for change in answer.changes):
                return


WATCHED = "user/watched"


async def measure_changes(figures: Figures, cluster: EblaCluster, count: int) -> None:
    leader = await cluster.find_leader()
    async with (
        Clients([leader], 1) as (writer,),
        Clients(cluster.nodes, NODES) as watching,
        Clients(cluster.nodes, NODES) as watching_group0,
    ):

        async def set_setting(value: str) -> None:
            request = SettingsWriteRequest(changes=(SettingChange(WATCHED, value),), wait_ms=0)
            await writer.call(SETTINGS_WRITE, request, DEADLINE_MS)

        async def put(value: str) -> None:
            request = ExecuteRequest(Transaction((), (PutKey(WATCHED, value.encode()),)))
            await writer.call(GROUP0_EXECUTE, request, DEADLINE_MS)

        watches = [SettingsWatch(each) for each in watching]
        group0_watches = [Group0Watch(each) for each in watching_group0]
        await asyncio.gather(*(watch.begin() for watch in watches), *(watch.begin() for watch in group0_watches))
        took_ms: dict[str, list[float]] = {"set": [], "put": []}
        for number in range(count):
            value = f"{number:0100d}"
            took_ms["set"].append(await _until_shown(set_setting, watches, value))
            took_ms["put"].append(await _until_shown(put, group0_watches, value))
    for name, index, limit_ratio in (("p50", 49, CHANGE_P50_RATIO_MAX), ("p99", 98, CHANGE_P99_RATIO_MAX)):
        ours, theirs = (statistics.quantiles(took_ms[kind], n=100)[index] for kind in ("set", "put"))
        figures.note(f"set_{name}_ms", ours)
        figures.note(f"put_{name}_ms", theirs)
        limit = figures.at_most(f"change_{name}_ratio", ours / theirs, limit_ratio)
        print(
            f"change, {name}: set shown on all nodes after {ours:.2f} ms; put to group 0 after {theirs:.2f} ms; "
            f"ratio {ours / theirs:.2f}  {limit}"
        )


async def _until_shown(
    write: Callable[[str], Awaitable[None]], watches: Sequence[SettingsWatch] | Sequence[Group0Watch], value: str
) -> float:
    """In ms, from the write until every watch has shown it."""
    async with asyncio.TaskGroup() as tasks:
        shown = [tasks.create_task(watch.wait_shown(value)) for watch in watches]
        await asyncio.sleep(0.02)  # the watches wait at their nodes by then
        began = time.perf_counter()
        await write(value)
        await asyncio.gather(*shown)
        return (time.perf_counter() - began) * 1000


# ---- content


async def write_all(cluster: EblaCluster, value: str | None) -> None:
    """Sets or deletes every key, on one node, and waits until all nodes have all of them."""
    async with Clients(cluster.nodes[:1], 1) as (caller,):
        for start in range(0, KEYS, KEYS_PER_WRITE):
            changes = tuple(SettingChange(_key(number), value) for number in range(start, start + KEYS_PER_WRITE))
            request = SettingsWriteRequest(changes=changes, wait_ms=20_000)
            answer = await caller.call(SETTINGS_WRITE, request, 30_000)
            assert not answer.missing, answer.missing


async def wait_ready(cluster: EblaCluster) -> None:
    """Until every node accepts writes of settings."""
    gives_up_at = time.monotonic() + START_S
    async with Clients(cluster.nodes, NODES) as callers:
        while time.monotonic() < gives_up_at:
            try:
                statuses = [
                    await each.call(SETTINGS_PURGE_STATUS, SettingsPurgeStatusRequest(), DEADLINE_MS)
                    for each in callers
                ]
            except EblaError:
                statuses = []
            if statuses and not any(status.in_reset for status in statuses):
                return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"settings are not ready after {START_S} s; see {cluster.folder}/node1/run/bench-output")


def _key(number: int) -> str:
    return f"user/bench/{number * 7919 % 1_000_003:08d}"


# ---- purge


async def purge(cluster: EblaCluster) -> float:
    """How long a round takes, in seconds."""
    leader = await cluster.find_leader()
    async with Clients([leader], 1) as (caller,):
        request = SettingsPurgeRequest(round=SystemRng().uuid(), timeout_ms=60_000, older_than_ms=0)
        report: PurgeReport | None = None
        began = time.perf_counter()
        while report is None:
            answer = await caller.call(SETTINGS_PURGE, request, DEADLINE_MS)
            request = msgspec.structs.replace(request, seen=request.seen + len(answer.steps))
            report = answer.report
        took_s = time.perf_counter() - began
    assert report.result == "purged", report
    assert report.tombstones == KEYS, report
    return took_s


# ---- full sync


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRig:
    """This process in the place of one node, and the node that it pulls from."""

    place: LocalNode
    source: LocalNode
    folder: Path
    environment: Environment

    @property
    def host(self) -> HostId:
        identity = self.place.folder.read_identity()
        assert identity is not None
        return identity.host

    async def connect(self) -> RpcClientConnection:
        identity = self.place.folder.read_identity()
        assert identity is not None
        introduction = Introduction(host=self.host, cluster=identity.cluster, cluster_name=identity.cluster_name)
        context = PeersContext(
            transport=self.environment.transport,
            rng=self.environment.rng,
            introduction=introduction,
            report=discard_event,
        )
        caller, _ = await connect(context, self.source.options.control_address, ConnectionTarget(Lane.DATA))
        return caller


async def sync_once(rig: SyncRig, number: int) -> tuple[float, list[bytes]]:
    """How long it took, in seconds, and the pages."""
    durable = await DurableSettings.open(rig.environment, str(rig.folder / f"store{number}"), rig.host)
    caller = await rig.connect()
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(durable.work())
        await durable.replace(lambda store: store.restored(None, 0))  # a new store is in reset, and merges nothing
        pages: list[bytes] = []
        after, began = "", time.perf_counter()
        while not pages or after:
            page = await caller.call(SETTINGS_PULL, SettingsPullRequest(after), DEADLINE_MS)
            received = ReceivedEntries(decode_entries(page.entries), page.header.watermark_us)
            await durable.run(partial(_receive, received))
            pages.append(page.entries)
            after = page.next_after
        took_s = time.perf_counter() - began
        working.cancel()
    caller.close("done")
    assert len(durable.store.entries) > KEYS
    await durable.close()
    return took_s, pages


def _receive(received: ReceivedEntries, store: SettingsStore) -> Decision:
    return store.receive([received], 0)


async def measure_sync(figures: Figures, cluster: EblaCluster, rounds: int) -> float:
    """The median, in seconds. One node of the cluster is down afterwards."""
    cluster.nodes[-1].kill()
    place, source = cluster.nodes[-1].node, cluster.nodes[0].node
    ours, least, bytes_sent = [], [], 0
    async with TcpTransport(NodeTls(TlsFolder(place.folder.tls)), discard_event) as transport:
        environment = Environment(clock=SystemClock(), rng=SystemRng(), disk=FileDisk(), transport=transport)
        folder = cluster.folder / "sync"
        folder.mkdir()
        rig = SyncRig(place=place, source=source, folder=folder, environment=environment)
        for number in range(rounds):
            took_s, pages = await sync_once(rig, number)
            ours.append(took_s)
            least.append(await _receive_and_decode(rig, pages))
            bytes_sent = sum(map(len, pages))
    took_s, least_s = statistics.median(ours), statistics.median(least)
    figures.note("sync_s", took_s)
    figures.note("sync_least_s", least_s)
    limit = figures.at_most("sync_ratio", took_s / least_s, SYNC_RATIO_MAX)
    print(
        f"full sync, {bytes_sent / 1e6:.1f} MB: {took_s * 1000:.0f} ms; to send and decode as much takes "
        f"{least_s * 1000:.0f} ms; ratio {took_s / least_s:.2f}  {limit}"
    )
    return took_s


class _Receiver:
    """Decodes pages as they arrive."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def link_closed(self, cause: str) -> None: ...

    def frame_received(self, frame: bytes) -> None:
        if frame == END:
            self.ended.set()
        else:
            decode_entries(frame)


def _start_source(rig: SyncRig, address: Address, pages: Sequence[bytes]) -> "subprocess.Popen[str]":
    """Returns once it listens."""
    file = rig.folder / "pages"
    file.write_bytes(msgspec.msgpack.encode(list(pages)))
    command = [sys.executable, "-m", "benchmarks.bench_settings", "--source", str(rig.source.folder.tls)]
    source = subprocess.Popen([*command, address.host, str(file)], stdout=subprocess.PIPE, text=True)
    assert source.stdout is not None
    assert source.stdout.readline() == "ready\n"
    return source


async def _receive_and_decode(rig: SyncRig, pages: Sequence[bytes]) -> float:
    address = Address(rig.place.options.address, SOURCE_PORT)
    receiver = _Receiver()
    links: list[Link] = []

    def opened(link: Link) -> _Receiver:
        links.append(link)
        return receiver

    with _start_source(rig, address, pages) as source:
        await rig.environment.transport.connect(address, opened)
        began = time.perf_counter()
        links[0].send(b"begin")
        await receiver.ended.wait()
        took_s = time.perf_counter() - began
        links[0].send(END)
        await links[0].wait_drained()
        source.wait(10)
    return took_s


class _Source:
    """Sends the pages when it is told to begin."""

    def __init__(self, link: Link, pages: Sequence[bytes]) -> None:
        self._link = link
        self._pages = pages
        self.ended = asyncio.Event()

    def link_closed(self, cause: str) -> None: ...

    def frame_received(self, frame: bytes) -> None:
        if frame == END:
            self.ended.set()
            return
        for page in (*self._pages, END):
            self._link.send(page)


async def send_pages(tls_folder: str, host: str, pages: Sequence[bytes]) -> None:
    made: list[_Source] = []
    connected = asyncio.Event()

    def accept(link: Link) -> _Source:
        made.append(_Source(link, pages))
        connected.set()
        return made[-1]

    async with TcpTransport(NodeTls(TlsFolder(Path(tls_folder))), discard_event) as transport:
        await transport.listen(Address(host, SOURCE_PORT), accept)
        print("ready", flush=True)
        async with asyncio.timeout(30):
            await connected.wait()
            await made[0].ended.wait()


# ---- merge

ACTORS = [uuid.UUID(int=number << 96) for number in range(1, 4)]


def measure_merge(figures: Figures, repeats: int) -> None:
    seconds = []
    for size in MERGE_SIZES:
        local, pages = _merged_entries(size)
        decode_s = min(_cpu_s(partial(_decode_all, pages)) for _ in range(repeats))
        remote = [each for page in pages for each in decode_entries(page)]
        merge_s = min(_cpu_s(partial(_merge_all, local, remote)) for _ in range(repeats))
        seconds.append(merge_s)
        figures.note(f"merge_us_{size}", merge_s / size * 1e6)
        figures.note(f"decode_us_{size}", decode_s / size * 1e6)
        limit = figures.at_most(f"merge_ratio_{size}", merge_s / decode_s, MERGE_RATIO_MAX)
        print(
            f"merge, {size} keys: {merge_s / size * 1e6:.2f} µs of CPU per key; to decode the entry takes "
            f"{decode_s / size * 1e6:.2f} µs; ratio {merge_s / decode_s:.2f}  {limit}"
        )
    limit = figures.at_most("merge_deviation", deviation_from_linear(MERGE_SIZES, seconds), LINEAR_DEVIATION_MAX)
    print(f"merge: deviates from linear growth by {figures.values['merge_deviation']:.2f}  {limit}")


def _merged_entries(size: int) -> tuple[dict[str, Entry], list[bytes]]:
    """What a node has, and the pages that it is sent: by turns the same, a newer, an older, and a conflicting entry."""
    local: dict[str, Entry] = {}
    remote: list[tuple[str, Entry]] = []
    for number in range(size):
        clock = tuple(Stamp(actor, number, 1_000_000 + number) for actor in ACTORS)
        later = (*clock[:2], Stamp(ACTORS[2], number + 1, 2_000_000 + number))
        aside = (Stamp(ACTORS[0], number + 1, 3_000_000 + number), *clock[1:])
        entry, newer, other = (
            Entry(f"{name}{number:099d}".encode(), each) for name, each in (("a", clock), ("b", later), ("c", aside))
        )
        pairs = ((entry, entry), (entry, newer), (newer, entry), (newer, other))
        local[_key(number)], sent = pairs[number % len(pairs)]
        remote.append((_key(number), sent))
    return local, [encode_entries(remote[start : start + KEYS_PER_PAGE]) for start in range(0, size, KEYS_PER_PAGE)]


def _decode_all(pages: Sequence[bytes]) -> None:
    for page in pages:
        decode_entries(page)


def _merge_all(local: dict[str, Entry], remote: Sequence[tuple[str, Entry]]) -> None:
    for key, entry in remote:
        merge(local.get(key), entry, NEVER_PURGED)


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter, and less sure")
    parser.add_argument("--folder", default=".", help="where the data go; a folder of its own is made there")
    parser.add_argument("--source", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    figures = Figures()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if chosen.source:
            tls_folder, host, file = chosen.source
            runner.run(send_pages(tls_folder, host, msgspec.msgpack.decode(Path(file).read_bytes(), type=list[bytes])))
            return 0
        changes, rounds, repeats = (50, 2, 2) if chosen.quick else (300, 7, 5)
        print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        measure_merge(figures, repeats)
        with (
            tempfile.TemporaryDirectory(dir=chosen.folder) as scratch,
            closing(EblaCluster(Path(scratch).absolute() / "ebla", b"", runner, count=NODES)) as cluster,
        ):
            cluster.wait_quiet()
            runner.run(wait_ready(cluster))
            runner.run(write_all(cluster, VALUE))
            runner.run(measure_changes(figures, cluster, changes))
            runner.run(write_all(cluster, None))
            purge_s = figures.note("purge_s", runner.run(purge(cluster)))
            runner.run(write_all(cluster, VALUE))
            sync_s = runner.run(measure_sync(figures, cluster, rounds))
        limit = figures.at_most("purge_ratio", purge_s / sync_s, PURGE_RATIO_MAX)
        print(
            f"purge of {KEYS} tombstones on {NODES} nodes: {purge_s * 1000:.0f} ms; ratio to a full sync "
            f"{purge_s / sync_s:.2f}  {limit}"
        )
    figures.note("load_after", os.getloadavg()[0])
    print(json.dumps(figures.values | {"missed": figures.missed, "within_limits": not figures.missed}))
    return 0 if not figures.missed else 1


if __name__ == "__main__":
    sys.exit(main())

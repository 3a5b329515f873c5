"""What a committed entry costs: CPU with three peers in one process, and time with three real processes that sync.

    python -m benchmarks.bench_raft [--quick] [--folder FOLDER]

CPU: three peers in one process, entries of 200 bytes proposed in batches, each batch committed and applied by all
before the next. The logs are written to files, without syncs; messages pass as objects, without the wire, which has
a benchmark of its own. Once the cores and their logs alone, which the limits are for, and once the whole servers, with
their turns on the event loop and a waiting caller per entry. User and system time of the whole process, the best of
many short windows: other load on the machine only ever adds.

Time: three processes on loopback over the real wire (plain TCP, no TLS), each with its own log on the same disk, every
write synced. The callers are in the leader's process, as group 0's are. Beside it, in the same run, the disk's own rate
of syncs, measured before and after each: the disk is shared, so its rate varies. With one in flight there is a second
reference: three bare processes that only forward a record, sync and answer
(`benchmarks/bare_relay.py`), measured by turns with the commits. The last line is JSON.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare_relay import BareRelay
from benchmarks.disk_limit import measure_sync_rate
from ebla.control.raft.config import RaftConfig
from ebla.control.raft.driver import RaftDriver
from ebla.control.raft.storage import RaftStorage
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.raft.core import RaftCore
from ebla.raft.effects import Effects, LogWrite
from ebla.raft.events import Campaign, Propose, RaftEvent
from ebla.raft.membership import MembershipChange
from ebla.raft.messages import (
    NO_PEER,
    Entry,
    EntryKind,
    HardState,
    InstallSnapshot,
    Membership,
    Message,
    PeerId,
    SnapshotMeta,
)
from ebla.raft.options import RaftOptions
from ebla.raft.state import RecoveredState
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.file_disk import DiskFile, FileDisk
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.wire.frames import Introduction
from ebla.wire.group0_messages import RaftMessages
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import RAFT

PEERS = (PeerId(1), PeerId(2), PeerId(3))
EVERYBODY = Membership(voters=PEERS)
ENTRY_BYTES = 200
CPU_US_MAX = {1: 120.0, 8: 25.0, 64: 9.0, 256: 6.0}
IN_FLIGHT = (1, 64, 512)
SYNC_SHARE_MIN = 0.4
CLUSTER = ClusterId(uuid.UUID(int=0xC))
HISTORY = HistoryId(uuid.UUID(int=0xD))
PORT = 7000
COMMAND_LINE_BYTES_MAX = 1 << 16


# ---- one peer


class Count:
    """A state machine that only counts, and wakes the caller of its entry."""

    def __init__(self) -> None:
        self.index = 0
        self.waiting: dict[bytes, asyncio.Future[None]] = {}

    def apply(self, entry: Entry) -> None:
        self.index = entry.index
        future = self.waiting.pop(entry.data[:8], None)
        if future is not None:
            future.set_result(None)

    def apply_membership(self, entry: Entry, change: MembershipChange) -> bool:
        self.index = entry.index
        return bool(change.changes)

    def freeze(self) -> Iterator[bytes]:
        return iter((self.index.to_bytes(8),))

    def receiver(self) -> "Count":
        return Count()

    def add(self, data: bytes) -> None:
        self.index = int.from_bytes(data)

    def finish(self) -> int:
        return self.index

    def install(self, content: int) -> None:
        self.index = content


class OnePeer:
    def __init__(self, around: Environment, folder: str, peer: PeerId, wire: "InProcess | OverTcp") -> None:
        self.machine = Count()
        setup = RaftConfig(folder=folder, options=RaftOptions(peer=peer), report=discard_event)
        self.server: RaftDriver[int] = RaftDriver(around, setup, self.machine, wire)
        self._serial = 0

    async def open(self) -> None:
        meta = SnapshotMeta(1, 1, EVERYBODY)
        write = LogWrite(hard_state=HardState(1, NO_PEER, 1), entries=(), snapshot=meta, must_sync=True, answers=())
        await self.server.begin(meta, iter(((1).to_bytes(8),)), write)
        await self.server.open()

    def propose(self) -> "asyncio.Future[None]":
        self._serial += 1
        name = self._serial.to_bytes(8)
        future = self.machine.waiting[name] = asyncio.get_running_loop().create_future()
        self.server.propose(name + bytes(ENTRY_BYTES - 8), EntryKind.COMMAND)
        return future

    async def lead(self) -> None:
        while not self.server.is_leader:
            self.server.post(Campaign())
            await asyncio.sleep(0.1)
        await self.propose()


# ---- three peers in one process


class InProcess:
    def __init__(self, peers: dict[PeerId, OnePeer]) -> None:
        self._peers = peers

    def name_of(self, peer: PeerId) -> str:
        return f"peer {peer}"

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        self._peers[peer].server.post_all(messages)
        return True

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        raise AssertionError(f"no peer falls behind here: {message} {chunks}")


class UnsyncedFile(DiskFile):
    async def sync(self) -> None:
        pass

    def can_sync_now(self, more_bytes: int) -> bool:  # noqa: ARG002  # nothing is synced
        return True

    def sync_now(self) -> None:
        pass


class UnsyncedDisk(FileDisk):
    """Real files that are written and never synced: only CPU work remains."""

    def open(self, path: str) -> DiskFile:
        return UnsyncedFile(path, os.open(path, os.O_RDWR), self._syncing)

    def create(self, path: str) -> DiskFile:
        return UnsyncedFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), self._syncing)


class CoresAndLogs:
    """Three cores and their logs, in the order of `raft/effects.py`, by the shortest path."""

    def __init__(self, folder: str, disk: FileDisk) -> None:
        self._folder = folder
        self._disk = disk
        self._cores: dict[PeerId, RaftCore] = {}
        self._logs: dict[PeerId, RaftStorage] = {}
        self._stepped: dict[PeerId, None] = {}
        self.applied = 0

    async def open(self) -> None:
        meta = SnapshotMeta(1, 1, EVERYBODY)
        state = HardState(1, NO_PEER, 1)
        for peer in PEERS:
            log, _ = await RaftStorage.open(self._disk, SystemRng(), f"{self._folder}/{peer}")
            await log.store_snapshot(meta, (b"nothing",))
            await log.persist([LogWrite(hard_state=state, entries=(), snapshot=meta, must_sync=True, answers=())])
            self._logs[peer] = log
            self._cores[peer] = RaftCore(RaftOptions(peer=peer), RecoveredState(state, meta, ()), SystemRng(), 0)
        await self.step(Campaign())

    async def step(self, event: RaftEvent) -> None:
        """A step at the leader, and everything that follows from it at all peers."""
        self._cores[PEERS[0]].step(event, 0)
        self._stepped[PEERS[0]] = None
        while self._stepped:
            peer, _ = self._stepped.popitem()
            core = self._cores[peer]
            if core.has_effects:
                await self._carry_out(peer, core.take())

    async def _carry_out(self, peer: PeerId, effects: Effects) -> None:
        for message in effects.messages:
            self._cores[message.to].step(message, 0)
            self._stepped[message.to] = None
        if effects.write is not None:
            log = self._logs[peer]
            if effects.write.needs_disk or not log.record_commit_hint(effects.write.hard_state):
                await log.persist((effects.write,))
            for answer in effects.write.answers:
                self._cores[answer.to].step(answer, 0)
                self._stepped[answer.to] = None
        if effects.apply is not None:
            self.applied += len(effects.apply.entries)
            self._cores[peer].step(effects.apply.answer, 0)
            self._stepped[peer] = None

    async def batch(self, payloads: tuple[bytes, ...]) -> None:
        before = self.applied
        await self.step(Propose(payloads))
        assert self.applied == before + len(payloads) * len(PEERS), "committed and applied everywhere"


async def measure_cores(folder: str, batch: int, seconds: float) -> float:
    """Microseconds of processor time per committed entry, all three peers together."""
    disk = UnsyncedDisk()
    group = CoresAndLogs(folder, disk)
    await group.open()
    payloads = tuple(bytes(ENTRY_BYTES) for _ in range(batch))

    async def one() -> None:
        await group.batch(payloads)

    best = await _best_window(one, batch, seconds)
    disk.close()
    return best


async def _best_window(one: Callable[[], Awaitable[None]], batch: int, seconds: float) -> float:
    """Ten batches per window: so short that some windows are undisturbed."""
    best = float("inf")
    rounds = 10
    ends_at = time.perf_counter() + seconds
    while time.perf_counter() < ends_at:
        began = time.process_time()
        for _ in range(rounds):
            await one()
        best = min(best, (time.process_time() - began) / rounds / batch)
    return best * 1e6


async def measure_servers(folder: str, batch: int, seconds: float) -> float:
    """The same with the whole servers."""
    disk = UnsyncedDisk()
    peers: dict[PeerId, OnePeer] = {}
    async with TcpTransport(None, discard_event, plain=True) as unused:
        around = Environment(clock=SystemClock(), rng=SystemRng(), disk=disk, transport=unused)
        for peer in PEERS:
            peers[peer] = OnePeer(around, f"{folder}/{peer}", peer, InProcess(peers))
            await peers[peer].open()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one.server.run()) for one in peers.values()]
            leader = peers[PEERS[0]]
            await leader.lead()

            async def one_batch() -> None:
                futures = [leader.propose() for _ in range(batch)]
                await futures[-1]

            best = await _best_window(one_batch, batch, seconds)
            for task in running:
                task.cancel()
        for one in peers.values():
            await one.server.close()
    disk.close()
    return best


# ---- three processes


class OverTcp:
    def __init__(self, peers: Peers, hosts: dict[PeerId, HostId], own: tuple[HostId, Address]) -> None:
        self._peers = peers
        self._hosts = hosts
        self._own_host, self._own_address = own

    def name_of(self, peer: PeerId) -> str:
        return f"peer {peer}"

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        notice = RaftMessages(history=HISTORY, messages=tuple(messages), host=self._own_host, address=self._own_address)
        return self._peers.send(self._hosts[peer], RAFT, notice)

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        raise AssertionError(f"no peer falls behind here: {message} {chunks}")


async def serve(network: str, peer: PeerId, folder: str) -> None:
    """One peer. Reads commands from stdin and answers each with one line."""
    hosts = {number: HostId(uuid.UUID(int=number)) for number in PEERS}
    disk = FileDisk()
    async with (
        TcpTransport(None, discard_event, plain=True) as transport,
        asyncio.TaskGroup() as tasks,
    ):
        around = Environment(clock=SystemClock(), rng=SystemRng(), disk=disk, transport=transport)
        introduction = Introduction(host=hosts[peer], cluster=CLUSTER, cluster_name="bench")
        links = Peers(
            tasks,
            PeersContext(
                transport=transport,
                rng=around.rng,
                introduction=introduction,
                report=discard_event,
            ),
        )
        addresses = {number: Address(f"{network}.{number}", PORT) for number in hosts}
        for number, host in hosts.items():
            links.set_address(host, addresses[number])
        one = OnePeer(around, folder, peer, OverTcp(links, hosts, (hosts[peer], addresses[peer])))
        await one.open()
        server = Server(tasks, introduction, discard_event)

        def receive(notice: RaftMessages, _call: IncomingCall) -> None:
            one.server.post_all(notice.messages)

        server.serve_notice(RAFT, receive)
        await transport.listen(addresses[peer], server.accept)
        tasks.create_task(one.server.run())
        tasks.create_task(_obey(one))


async def _obey(one: OnePeer) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=COMMAND_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while order := (await reader.readline()).split():
        if order[0] == b"lead":
            await one.lead()
            print("leads", flush=True)
        else:
            latencies, seconds = await _load(one, int(order[1]), float(order[2]))
            latencies.sort()
            print(len(latencies) / seconds, latencies[len(latencies) // 2] * 1e3, flush=True)
    os._exit(0)  # the other end is gone, and nothing here needs a clean end


async def _load(one: OnePeer, in_flight: int, seconds: float) -> tuple[list[float], float]:
    latencies: list[float] = []
    began = time.perf_counter()
    ends_at = began + seconds

    async def caller() -> None:
        while (sent_at := time.perf_counter()) < ends_at:
            await one.propose()
            latencies.append(time.perf_counter() - sent_at)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(caller())
    return latencies, time.perf_counter() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    in_flight: int
    per_s: float
    p50_ms: float
    syncs_per_s: float
    relay: tuple[float, float] | None
    """Of the bare relay, in the same round: commits per second and the median in milliseconds."""

    @property
    def share(self) -> float:
        return self.per_s / self.syncs_per_s


class Child:
    def __init__(self, network: str, peer: PeerId, folder: str) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_raft", "--serve", network, str(peer), "--folder", folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.poll()}"
        return line.strip()

    def ask(self, order: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def measure_processes(folder: Path, seconds: float, rounds: int) -> list[Commits]:
    network = f"127.{random.randrange(1, 250)}.{random.randrange(1, 250)}"
    children = [Child(network, peer, str(folder / f"p{peer}")) for peer in PEERS]
    measured: dict[int, list[Commits]] = {count: [] for count in IN_FLIGHT}
    relay = BareRelay(folder / "relay")
    try:
        for child in children:
            assert child.hear() == "ready"
        leader = children[0]
        assert leader.ask("lead") == "leads"
        leader.ask(f"load 64 {seconds / 2}")
        relay.measure(seconds / 4)
        for _ in range(rounds):
            for count in IN_FLIGHT:
                before = measure_sync_rate(folder, seconds=seconds / 4)
                per_s, p50_ms = map(float, leader.ask(f"load {count} {seconds}").split())
                bare = relay.measure(seconds) if count == 1 else None
                after = measure_sync_rate(folder, seconds=seconds / 4)
                measured[count].append(
                    Commits(in_flight=count, per_s=per_s, p50_ms=p50_ms, syncs_per_s=(before + after) / 2, relay=bare)
                )
    finally:
        relay.close()
        for child in children:
            child.end()
    return [sorted(figures, key=lambda figure: figure.share)[len(figures) // 2] for figures in measured.values()]


# ---- all of it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter, and less sure")
    parser.add_argument("--folder", default=".", help="where the logs go; a folder of its own is made there")
    parser.add_argument("--serve", nargs=2, metavar=("NETWORK", "PEER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if chosen.serve is not None:
            runner.run(serve(chosen.serve[0], PeerId(int(chosen.serve[1])), chosen.folder))
            return 0
        with tempfile.TemporaryDirectory(dir=chosen.folder) as scratch:
            return report(runner, Path(scratch), quick=chosen.quick)


def report(runner: asyncio.Runner, folder: Path, *, quick: bool) -> int:
    seconds, rounds = (0.5, 1) if quick else (1.5, 3)
    figures: dict[str, float] = {}
    good = True
    for batch, most_us in CPU_US_MAX.items():
        cores_us = runner.run(measure_cores(str(folder / f"cores-{batch}"), batch, seconds))
        servers_us = runner.run(measure_servers(str(folder / f"servers-{batch}"), batch, seconds))
        good &= cores_us <= most_us
        figures |= {f"cpu_us_per_entry_{batch}": cores_us, f"server_cpu_us_per_entry_{batch}": servers_us}
        print(
            f"batches of {batch:>3}: {cores_us:6.2f} µs CPU per entry and three peers (at most {most_us:g}),"
            f" {servers_us:6.2f} with the servers around them"
        )
    for one in measure_processes(folder, seconds, rounds):
        count = one.in_flight
        figures |= {
            f"commits_per_s_{count}": one.per_s,
            f"p50_ms_{count}": one.p50_ms,
            f"syncs_per_s_{count}": one.syncs_per_s,
        }
        print(
            f"{count:>3} in flight: {one.per_s:8.0f} commits/s, p50 {one.p50_ms:6.2f} ms,"
            f" {one.share:5.2f} of the disk's {one.syncs_per_s:.0f} syncs/s"
        )
        if one.relay is not None:
            relay_per_s, relay_p50_ms = one.relay
            figures |= {"relay_per_s_1": relay_per_s, "relay_p50_ms_1": relay_p50_ms}
            figures["share_of_relay_1"] = one.per_s / relay_per_s
            print(
                f"  a bare relay: {relay_per_s:8.0f} commits/s, p50 {relay_p50_ms:6.2f} ms,"
                f" {relay_per_s / one.syncs_per_s:5.2f} of the disk's; ours are {one.per_s / relay_per_s:.2f} of that"
            )
        if count == 1:
            good &= one.share >= SYNC_SHARE_MIN
            figures["share_of_syncs_1"] = one.share
    print(json.dumps({name: round(value, 3) for name, value in figures.items()} | {"within_limits": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

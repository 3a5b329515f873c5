"""Nodes of Ebla as real processes, and clients of their group 0 over the nodes' Unix sockets."""

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil

from benchmarks.etcd_cluster import KEY, Load
from ebla.cli.local_cluster import LocalNode, Shape, find_or_make_nodes, give_identities
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.model.transaction import Put, Transaction
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.wire.calls import Caller, Target
from ebla.wire.frames import Introduction, Lane
from ebla.wire.group0_messages import ExecuteRequest, Group0Report, MembersRequest, ReadRequest
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.report import unreported
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_MEMBERS, GROUP0_READ

DEADLINE_MS = 5_000
START_S = 40.0

Entry = Sequence[str]
"""The command that runs a node, up to its options."""
PLAIN_ENTRY = (sys.executable, "-m", "ebla.node", "control")

EntryOf = Callable[[LocalNode], Entry]


def plain_entry(_node: LocalNode) -> Entry:
    return PLAIN_ENTRY


class NodeProcess:
    def __init__(self, node: LocalNode, entry: Entry = PLAIN_ENTRY) -> None:
        self.node = node
        self._entry = entry
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.node.folder.run.mkdir(parents=True, exist_ok=True)
        with (self.node.folder.run / "bench-output").open("ab") as output:
            command = [*self._entry, "--options", str(self.node.options_path)]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Of the whole node: control and whatever it started."""
        control = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (control, *control.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        self._process = self._start()

    def end(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class EblaCluster:
    """Three nodes, and a loop on which their clients run."""

    def __init__(
        self, folder: Path, value: bytes, runner: asyncio.Runner, entry: Callable[[LocalNode], Entry] = plain_entry
    ) -> None:
        base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
        overrides = ("limits.free_disk_bytes_min=0",)
        made = find_or_make_nodes(folder, Shape(3, 1, base, "bench", overrides))
        give_identities(made)
        self.folder = folder
        self.runner = runner
        self.put_request = ExecuteRequest(Transaction((), (Put(KEY.decode(), value),)))
        self.read_request = ReadRequest((KEY.decode(),))
        self.nodes = [NodeProcess(node, entry(node)) for node in made]
        self.runner.run(self._wait_formed())

    async def _wait_formed(self) -> None:
        ends_at = time.monotonic() + START_S
        while time.monotonic() < ends_at:
            try:
                reports = [await self.report(node) for node in self.nodes]
            except EblaError:
                reports = []
            if reports and all(
                report.leader is not None and sum(each.member.role == "voter" for each in report.members) == 3
                for report in reports
            ):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"no group of three voters after {START_S} s; see {self.folder}/node1/run/bench-output")

    async def report(self, node: NodeProcess) -> Group0Report:
        async with Clients([node], 1) as (client,):
            return await client.call(GROUP0_MEMBERS, MembersRequest(), DEADLINE_MS)

    def leader(self) -> NodeProcess:
        return self.runner.run(self.find_leader())

    async def find_leader(self) -> NodeProcess:
        for node in self.nodes:
            try:
                if (await self.report(node)).role == "leader":
                    return node
            except EblaError:
                continue
        raise RuntimeError("no node leads")

    def put(self, clients: int, seconds: float) -> Load:
        async def put(client: Caller) -> None:
            await client.call(GROUP0_EXECUTE, self.put_request, DEADLINE_MS)

        return self._load(put, clients, seconds)

    def read(self, clients: int, seconds: float) -> Load:
        async def read(client: Caller) -> None:
            await client.call(GROUP0_READ, self.read_request, DEADLINE_MS)

        return self._load(read, clients, seconds)

    def _load(self, work: Callable[[Caller], Awaitable[None]], clients: int, seconds: float) -> Load:
        leader = self.leader()
        cpu_before = sum(node.cpu_s() for node in self.nodes)
        took, spell_s = self.runner.run(_load(leader, work, clients, seconds))
        cpu_s = sum(node.cpu_s() for node in self.nodes) - cpu_before
        return Load(len(took) / spell_s, statistics.median(took) * 1000, cpu_s / len(took) * 1e6)

    def end(self) -> None:
        for node in self.nodes:
            node.end()


class Clients:
    """So many connections to the Unix sockets of nodes, round robin."""

    def __init__(self, nodes: Sequence[NodeProcess], count: int) -> None:
        self._nodes = nodes
        self._count = count
        self._transport = TcpTransport(None, TransportLimits(), unreported)
        self._callers: list[Caller] = []

    async def __aenter__(self) -> list[Caller]:
        await self._transport.__aenter__()
        for number in range(self._count):
            node = self._nodes[number % len(self._nodes)].node
            identity = node.folder.read_identity()
            assert identity is not None
            introduction = Introduction(identity.host, identity.cluster, identity.cluster_name, "cli")
            context = PeersContext(self._transport, SystemChance(), introduction, WireLimits(), unreported)
            try:
                caller, _ = await connect(context, Address(str(node.folder.control_socket)), Target(Lane.CONTROL))
            except BaseException:
                await self.__aexit__()
                raise
            self._callers.append(caller)
        return self._callers

    async def __aexit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.close("done")
        await self._transport.__aexit__(None, None, None)


async def _load(
    node: NodeProcess, work: Callable[[Caller], Awaitable[None]], clients: int, seconds: float
) -> tuple[list[float], float]:
    took: list[float] = []

    async def one(caller: Caller) -> None:
        while (sent_at := time.perf_counter()) < ends_at:
            await work(caller)
            took.append(time.perf_counter() - sent_at)

    async with Clients([node], clients) as callers:
        began = time.perf_counter()
        ends_at = began + seconds
        async with asyncio.TaskGroup() as tasks:
            for caller in callers:
                tasks.create_task(one(caller))
        return took, time.perf_counter() - began

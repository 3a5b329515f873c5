"""Nodes of Ebla as real processes, and clients of their group 0 over the nodes' Unix sockets."""

import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import psutil

from benchmarks.etcd_cluster import KEY, Load
from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, assign_identities, find_or_create_nodes
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.model.transaction import PutKey, Transaction
from ebla.observe.event_reporter import discard_event
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import (
    PROTOCOL_NEWEST,
    PROTOCOL_OLDEST,
    AnswerFrame,
    HelloFrame,
    Introduction,
    Lane,
    RequestFrame,
    encode,
)
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest, Group0Report, MembersRequest
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_MEMBERS, GROUP0_READ

DEADLINE_MS = 5_000
START_S = 40.0
QUIET_S = 2.0

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
        """Of the whole node: control and its children."""
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
    """Nodes that all vote, and the loop of their clients."""

    def __init__(
        self,
        folder: Path,
        value: bytes,
        runner: asyncio.Runner,
        entry: Callable[[LocalNode], Entry] = plain_entry,
        *,
        count: int = 3,
    ) -> None:
        base = f"127.{random.randrange(20, 250)}.{random.randrange(0, 250)}.1"
        overrides = ("limits.free_disk_bytes_min=0", "pipeline.enabled=false")
        made = find_or_create_nodes(
            folder, NewClusterSpec(nodes=count, shards=1, base_address=base, cluster_name="bench", overrides=overrides)
        )
        assign_identities(made)
        self.folder = folder
        self.runner = runner
        self.put_request = ExecuteRequest(Transaction((), (PutKey(KEY.decode(), value),)))
        self.read_request = Group0ReadRequest(keys=(KEY.decode(),))
        self.nodes = [NodeProcess(node, entry(node)) for node in made]
        self.wait_formed()

    def wait_formed(self) -> None:
        self.runner.run(self._wait_formed())

    def wait_quiet(self) -> None:
        """Until the nodes write nothing of their own any more: after the group is formed each still joins the ring,
        by way of group 0 and with shards that start, which is not what is measured here."""
        self.runner.run(self._wait_quiet())

    async def _wait_quiet(self) -> None:
        ends_at = time.monotonic() + START_S
        seen = [-1]
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_S:
            if time.monotonic() >= ends_at:
                raise RuntimeError(f"the nodes still write after {START_S} s; see {self.folder}/node1/run/bench-output")
            now = [(await self.report(node)).last for node in self.nodes]
            if now != seen:
                seen, quiet_since = now, time.monotonic()
            await asyncio.sleep(0.1)

    async def _wait_formed(self) -> None:
        ends_at = time.monotonic() + START_S
        while time.monotonic() < ends_at:
            try:
                reports = [await self.report(node) for node in self.nodes]
            except EblaError:
                reports = []
            if reports and all(
                report.leader is not None
                and sum(each.member.role == "voter" for each in report.members) == len(self.nodes)
                for report in reports
            ):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"not every node votes after {START_S} s; see {self.folder}/node1/run/bench-output")

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
        return self._load(GROUP0_EXECUTE.number, self.put_request, clients, seconds)

    def read(self, clients: int, seconds: float) -> Load:
        return self._load(GROUP0_READ.number, self.read_request, clients, seconds)

    def _load(self, verb: int, request: msgspec.Struct, clients: int, seconds: float) -> Load:
        leader = self.leader()
        asked = (verb, msgspec.Raw(encode(request)))
        cpu_before = sum(node.cpu_s() for node in self.nodes)
        if clients == 1:
            took, spell_s = _load_alone(leader.node, asked, seconds)
        else:
            took, spell_s = self.runner.run(_load(leader.node, asked, clients, seconds))
        cpu_s = sum(node.cpu_s() for node in self.nodes) - cpu_before
        return Load(len(took) / spell_s, statistics.median(took) * 1000, cpu_s / len(took) * 1e6)

    def close(self) -> None:
        for node in self.nodes:
            node.end()


class Clients:
    """Connections to the Unix sockets of nodes, round robin."""

    def __init__(self, nodes: Sequence[NodeProcess], count: int) -> None:
        self._nodes = nodes
        self._count = count
        self._transport = TcpTransport(None, discard_event)
        self._callers: list[RpcClientConnection] = []

    async def __aenter__(self) -> list[RpcClientConnection]:
        await self._transport.__aenter__()
        for number in range(self._count):
            node = self._nodes[number % len(self._nodes)].node
            identity = node.folder.read_identity()
            assert identity is not None
            introduction = Introduction(
                host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process="cli"
            )
            context = PeersContext(
                transport=self._transport,
                rng=SystemRng(),
                introduction=introduction,
                report=discard_event,
            )
            try:
                caller, _ = await connect(
                    context, Address(str(node.folder.control_socket)), ConnectionTarget(Lane.CONTROL)
                )
            except BaseException:
                await self.__aexit__()
                raise
            self._callers.append(caller)
        return self._callers

    async def __aexit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.close("done")
        await self._transport.__aexit__(None, None, None)


class _BareClient(asyncio.Protocol):
    """Sends one ready-made request after the other over a connection of its own. Does as little as the tool that loads
    etcd, so that neither side is measured with a client that is the limit."""

    def __init__(self, node: LocalNode, request: tuple[int, msgspec.Raw], ends_at: float) -> None:
        self._hello = _hello_of(node)
        self._verb, self._body = request
        self._ends_at = ends_at
        self._transport: asyncio.WriteTransport | None = None
        self._id = 0
        self._sent_at = 0.0
        self._pending = b""
        self.took: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._send(encode(self._hello))

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) < 4 or len(self._pending) < 4 + int.from_bytes(self._pending[:4]):
            return
        frame, self._pending = self._pending[4:], b""
        now = time.perf_counter()
        if self._id:
            if frame[1] != ANSWER_TAG:
                self.done.set_exception(RuntimeError(f"not answered: {frame!r}"))
                return
            self.took.append(now - self._sent_at)
        if now >= self._ends_at:
            self.done.set_result(None)
            return
        self._id += 1
        self._sent_at = now
        self._send(encode(RequestFrame(id=self._id, verb=self._verb, remaining_ms=DEADLINE_MS, body=self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the connection was lost: {exc}"))

    def _send(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(len(frame).to_bytes(4) + frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


ANSWER_TAG = msgspec.inspect.type_info(AnswerFrame).tag  # type: ignore[attr-defined]  # of a struct it is there


def _load_alone(node: LocalNode, request: tuple[int, msgspec.Raw], seconds: float) -> tuple[list[float], float]:
    """One client needs no loop, whose turns would be counted with every request: a socket that blocks is nearest to the
    tool that loads etcd."""
    verb, body = request
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(DEADLINE_MS / 1000)
        link.connect(str(node.folder.control_socket))
        _send_frame(link, encode(_hello_of(node)))
        _receive_frame(link)
        took: list[float] = []
        began = now = time.perf_counter()
        while now < began + seconds:
            sent_at = now
            _send_frame(link, encode(RequestFrame(id=len(took) + 1, verb=verb, remaining_ms=DEADLINE_MS, body=body)))
            frame = _receive_frame(link)
            now = time.perf_counter()
            if frame[1] != ANSWER_TAG:
                raise RuntimeError(f"not answered: {frame!r}")
            took.append(now - sent_at)
    return took, now - began


def _send_frame(link: socket.socket, frame: bytes) -> None:
    link.sendall(len(frame).to_bytes(4) + frame)


def _receive_frame(link: socket.socket) -> bytes:
    data = link.recv(65536)
    while data and (len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4])):
        data += link.recv(65536)
    if not data:
        raise RuntimeError("the connection was lost")
    return data[4:]


def _hello_of(node: LocalNode) -> HelloFrame:
    identity = node.folder.read_identity()
    assert identity is not None
    introduction = Introduction(
        host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process="cli"
    )
    return HelloFrame(
        oldest=PROTOCOL_OLDEST,
        newest=PROTOCOL_NEWEST,
        lane=Lane.CONTROL,
        frame_bytes_max=1 << 20,
        introduction=introduction,
    )


async def _load(
    node: LocalNode, request: tuple[int, msgspec.Raw], clients: int, seconds: float
) -> tuple[list[float], float]:
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [_BareClient(node, request, began + seconds) for _ in range(clients)]
    for client in made:
        await loop.create_unix_connection(partial(_itself, client), str(node.folder.control_socket))
    try:
        for client in made:
            await client.done
        return [one for client in made for one in client.took], time.perf_counter() - began
    finally:
        for client in made:
            client.close()


def _itself(client: _BareClient) -> _BareClient:
    return client

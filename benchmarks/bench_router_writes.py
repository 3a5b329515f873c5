"""What a write costs the shard that routes it: QUORUM at three replicas, one of them on the routing shard.

    python -m benchmarks.bench_router_writes [--seconds 3] [--in-flight 64] [--profile FILE]

Four processes on loopback, plain TCP: a client, the router, two replicas. The replicas answer at once and store
nothing, so that only routing is measured: decoding the client's frame, planning, sending replica writes, counting
answers. CPU is user plus system time of each process per write. With `--profile` the router writes a cProfile there.
The last line is JSON.
"""

import argparse
import asyncio
import cProfile
import json
import os
import random
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from ebla.aio.eager_future import EagerFuture
from ebla.feed.shard_peers import ShardAddresses
from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import Address, ClusterId, HistoryId, HostId, Replica, ShardNumber, TableId
from ebla.model.transaction import Revision
from ebla.observe.event_reporter import discard_event
from ebla.observe.metrics import Metrics
from ebla.request.router_types import Mutation, RouterDeps, RouterLimits
from ebla.request.shard_clients import ShardClients
from ebla.request.write_router import WriteRouter
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.storage.codec.key_codec import decode_token, partition_prefix, row_key
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace, Node, Replication, Snapshot, Table
from ebla.topology.states import NodeState, Strategy
from ebla.topology.tablet_map import tablet_map
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Introduction, Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.row_messages import (
    Item,
    ReadRowsAnswer,
    ReadRowsRequest,
    WriteRowsAnswer,
    WriteRowsRequest,
)
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import WRITE_ROWS, EmptyAnswer, Verb

ROUTER_US_MAX = 80
DEADLINE_MS = 5_000
PORT = 7010
TABLE = TableId(uuid.UUID(int=0x7AB1E))
TABLETS = 64
HOSTS = tuple(HostId(uuid.UUID(int=number)) for number in (1, 2, 3))
ALL_ACKNOWLEDGED = WriteRowsAnswer()


class CpuRequest(msgspec.Struct, frozen=True, array_like=True):
    pass


class CpuAnswer(msgspec.Struct, frozen=True, array_like=True):
    cpu_ns: int
    frames: int
    writes: int


CPU = Verb(number=9201, name="cpu", lane=Lane.DATA, request=CpuRequest, answer=CpuAnswer)


class BenchWriteRequest(msgspec.Struct, frozen=True, array_like=True):
    """Writes for the router. Nodes serve rows over CQL only; this verb exists in this benchmark alone."""

    writes: tuple[tuple[Item, ...], ...]
    level: ConsistencyLevel


BENCH_WRITE = Verb(number=9_101, name="bench_write", lane=Lane.DATA, request=BenchWriteRequest, answer=EmptyAnswer)


class StubReplica:
    """Acknowledges everything."""

    def __init__(self) -> None:
        self.frames = 0
        self.writes = 0

    def serve_write(self, request: WriteRowsRequest, _call: IncomingCall) -> WriteRowsAnswer:
        self.frames += 1
        self.writes += len(request.writes)
        return ALL_ACKNOWLEDGED

    async def write(self, request: WriteRowsRequest, _deadline_ms: int) -> WriteRowsAnswer:
        self.frames += 1
        self.writes += len(request.writes)
        return ALL_ACKNOWLEDGED

    async def read(self, _request: ReadRowsRequest, _deadline_ms: int) -> ReadRowsAnswer:
        raise AssertionError("nothing is read here")

    def cpu(self, _request: CpuRequest, _call: IncomingCall) -> CpuAnswer:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return CpuAnswer(int((usage.ru_utime + usage.ru_stime) * 1e9), self.frames, self.writes)


def serve_writes(server: Server, writes: WriteRouter) -> None:
    def write(request: BenchWriteRequest, call: IncomingCall) -> EagerFuture[None]:
        mutations = [Mutation(TABLE, decode_token(items[0][0]), items) for items in request.writes]
        answer: EagerFuture[None] = EagerFuture()
        writes.write(mutations, request.level, call.remaining_ms()).add_done_callback(lambda _: answer.set_result(None))
        return answer

    server.serve_future(BENCH_WRITE, write, lambda _: EmptyAnswer())


def place(net: str, number: int) -> str:
    return f"{net}.{number}"


def snapshot(net: str) -> Snapshot:
    nodes = {
        host: Node(
            host=host,
            datacenter="dc1",
            rack="r1",
            shard_count=1,
            ignore_msb=0,
            release_version="1",
            address=place(net, number),
            num_tokens=1,
            state=NodeState.NORMAL,
        )
        for number, host in enumerate(HOSTS, 1)
    }
    replicas = tuple(Replica(host, ShardNumber(0)) for host in HOSTS)
    keyspace = Keyspace(name="ks", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 3),)), on_tablets=True)
    return Snapshot(
        nodes=FrozenMap(nodes),
        keyspaces=FrozenMap({"ks": keyspace}),
        tables=FrozenMap({TABLE: Table(id=TABLE, keyspace="ks", name="t")}),
        tablets=FrozenMap({TABLE: tablet_map(TABLE, [replicas] * TABLETS)}),
    )


def introduction(host: HostId) -> Introduction:
    return Introduction(host=host, cluster=ClusterId(uuid.UUID(int=0xC)), cluster_name="bench", process="shard-0")


async def serve(number: int, net: str, profile: str) -> None:
    """Node 1 routes, and has a replica too; the others are only replicas."""
    host = HOSTS[number - 1]
    stub = StubReplica()
    async with (
        TcpTransport(None, discard_event, plain=True) as transport,
        asyncio.TaskGroup() as tasks,
    ):
        server = Server(tasks, introduction(host), discard_event)
        server.serve(WRITE_ROWS, stub.serve_write)
        server.serve(CPU, stub.cpu)
        if number == 1:
            context = PeersContext(
                transport=transport,
                rng=SystemRng(),
                introduction=introduction(host),
                report=discard_event,
            )
            own = Replica(host, ShardNumber(0))
            addresses = ShardAddresses(
                own=own.host, port_first=PORT, socket_of=lambda _: Address("/nowhere"), own_shard=own.shard
            )
            clients = ShardClients(tasks, context, addresses, stub)
            view = TopologyView()
            view.install(view_of(snapshot(net), Revision(HistoryId(uuid.UUID(int=1)), 1)))
            clients.follow(view.current.snapshot)
            clock, limits = SystemClock(), RouterLimits()
            writes = WriteRouter(
                RouterDeps(
                    view=view,
                    own=own,
                    datacenter="dc1",
                    clients=clients,
                    clock=clock,
                    limits=limits,
                    metrics=Metrics(),
                    tasks=tasks,
                )
            )
            serve_writes(server, writes)
        await transport.listen(Address(place(net, number), PORT), server.accept)
        print("ready", flush=True)
        profiler = cProfile.Profile() if profile else None
        if profiler is not None:
            profiler.enable()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(profile)
        os._exit(0)


def requests(count: int, batch: int) -> list[BenchWriteRequest]:
    chosen = random.Random(7)
    made = []
    for _ in range(count):
        writes = []
        for _ in range(batch):
            prefix = partition_prefix(chosen.randrange(-(2**63) + 1, 2**63), chosen.randbytes(12))
            writes.append(((row_key(prefix), chosen.randbytes(100)),))
        made.append(BenchWriteRequest(tuple(writes), ConsistencyLevel.QUORUM))
    return made


async def drive(net: str, seconds: float, in_flight: int, batch: int) -> dict[str, float]:
    async with TcpTransport(None, discard_event, plain=True) as transport:
        context = PeersContext(
            transport=transport,
            rng=SystemRng(),
            introduction=introduction(HostId(uuid.UUID(int=9))),
            report=discard_event,
        )
        callers = [
            (await connect(context, Address(place(net, number), PORT), ConnectionTarget(Lane.DATA)))[0]
            for number in (1, 2, 3)
        ]
        asked = requests(512, batch)
        done = 0

        async def client(first: int, until: float) -> None:
            nonlocal done
            number = first
            while time.monotonic() < until:
                await callers[0].call(BENCH_WRITE, asked[number % len(asked)], DEADLINE_MS)
                number += 1
                done += 1

        async def run(for_s: float) -> None:
            until = time.monotonic() + for_s
            await asyncio.gather(*(client(number * 8, until) for number in range(in_flight)))

        async def cpu() -> Sequence[CpuAnswer]:
            return [await caller.call(CPU, CpuRequest(), DEADLINE_MS) for caller in callers]

        await run(min(1.0, seconds))
        before, done, began = await cpu(), 0, time.monotonic()
        await run(seconds)
        took, after = time.monotonic() - began, await cpu()
        writes = done * batch
        figures = {
            "writes_per_s": writes / took,
            "router_us": (after[0].cpu_ns - before[0].cpu_ns) / writes / 1000,
            "replica_us": (after[1].cpu_ns - before[1].cpu_ns) / writes / 1000,
            "writes_per_frame": (after[1].writes - before[1].writes) / max(1, after[1].frames - before[1].frames),
        }
        for caller in callers:
            caller.close("done")
        return figures


def start(role: int, net: str, profile: str) -> "subprocess.Popen[bytes]":
    """Ends when its input does."""
    command = [sys.executable, "-m", "benchmarks.bench_router_writes", f"--role={role}", f"--net={net}"]
    child = subprocess.Popen([*command, f"--profile={profile}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n", "a process of the benchmark did not start"
    return child


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--in-flight", type=int, default=64)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--profile", default="")
    options.add_argument("--role", type=int, default=0)
    options.add_argument("--net", default=f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}")
    asked = options.parse_args()
    if asked.role:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(asked.role, asked.net, asked.profile))
        return
    with ExitStack() as children:
        for role in (2, 3, 1):
            children.callback(start(role, asked.net, asked.profile if role == 1 else "").communicate)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            figures = runner.run(drive(asked.net, asked.seconds, asked.in_flight, asked.batch))
    for name, value in figures.items():
        print(f"{name:18} {value:10.1f}")
    print(json.dumps({"in_flight": asked.in_flight, "batch": asked.batch, "router_us_max": ROUTER_US_MAX, **figures}))


if __name__ == "__main__":
    main()

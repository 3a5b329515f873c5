"""Requests between two processes: ours, ours under mutual TLS, a minimal variant of ours, and grpc.aio, in one run.

    python -m benchmarks.bench_messaging [--quick]

One client and one server process on loopback, one connection, a struct of six fields (200 bytes) out and 64 bytes
back, an asynchronous function on the server (`inline`: a plain one). Our variants run in one pair of processes
and take turns of a quarter of a second, so that a busy moment of the machine affects all of them; grpc.aio has its own
pair, between them. Figures are medians over the turns, ratios medians over the rounds;
`over_grpc_best_turns` compares the one best turn of each. CPU is user plus system time of each process, per request,
and the figure to trust on a busy machine. The last line is JSON.
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import msgspec
import psutil

from ebla.model.identity import Address, ClusterId, HostId
from ebla.observe.event_reporter import discard_event
from ebla.ports.transport import Link
from ebla.runtime.data_folder import NodeIdentity
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder, Validity, make_authority
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Introduction, Lane, encode
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import Verb

uvloop = importlib.import_module("uvloop") if importlib.util.find_spec("uvloop") else None

GRPC_RATIO_MIN = 20.0
TLS_CPU_RATIO_MAX = 1.6
DEADLINE_RATIO_MAX = 1.5
DEADLINE_MS = 5000
TURN_S = 0.25

Case = tuple[str, int]
"""A variant, and how many requests are in flight."""
OURS = ("plain", "tls", "inline", "bare")
OUR_CASES: list[Case] = [
    ("plain", 64),
    ("tls", 64),
    ("bare", 64),
    ("inline", 64),
    ("plain", 1),
    ("bare", 1),
    ("tls", 1),
]
GRPC_CASES: list[Case] = [("grpc", 64)]
CLUSTER = ClusterId(uuid.UUID(int=0xC))


class Read(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    table: bytes
    token: int
    version: int
    now_us: int
    key: bytes
    rest: bytes


class Row(msgspec.Struct, frozen=True, array_like=True):
    value: bytes


class CpuRequest(msgspec.Struct, frozen=True, array_like=True):
    pass


class CpuAnswer(msgspec.Struct, frozen=True, array_like=True):
    cpu_ns: int
    rss_bytes: int


READ = Verb(number=9101, name="read", lane=Lane.DATA, request=Read, answer=Row)
CPU = Verb(number=9102, name="cpu", lane=Lane.DATA, request=CpuRequest, answer=CpuAnswer)

_padding = 200 - len(
    msgspec.msgpack.encode(Read(table=b"t" * 16, token=-(2**60), version=7, now_us=2**50, key=b"k" * 24, rest=b""))
)
READ_200 = Read(table=b"t" * 16, token=-(2**60), version=7, now_us=2**50, key=b"k" * 24, rest=b"r" * _padding)
ROW_64 = Row(b"v" * 61)


def cpu_ns() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


def cpu_answer() -> CpuAnswer:
    return CpuAnswer(cpu_ns(), psutil.Process().memory_info().rss)


async def read(_request: Read, _call: IncomingCall | None) -> Row:
    return ROW_64


Call = Callable[[], Awaitable[object]]
AskCpu = Callable[[], Awaitable[CpuAnswer]]


# ---- ours


def introduction(number: int) -> Introduction:
    return Introduction(host=HostId(uuid.UUID(int=number)), cluster=CLUSTER, cluster_name="bench")


def transport(folder: str, variant: str) -> TcpTransport:
    if variant == "tls":
        return TcpTransport(NodeTls(TlsFolder(Path(folder))), discard_event)
    return TcpTransport(None, discard_event, plain=True)


async def serve_all(address: Address, folder: str) -> None:
    """Each variant of ours on its own port."""
    async with (
        transport(folder, "tls") as encrypted,
        transport(folder, "plain") as net,
        asyncio.TaskGroup() as tasks,
    ):
        for offset, variant in enumerate(OURS):
            place = Address(address.host, address.port + offset)
            if variant == "bare":
                await net.listen(place, lambda link: BareServed(link, tasks))
                continue
            server = Server(tasks, introduction(1), discard_event)
            if variant == "inline":
                server.serve(READ, lambda _request, _call: ROW_64)
            else:
                server.serve(READ, read)
            server.serve(CPU, lambda _request, _call: cpu_answer())
            await (encrypted if variant == "tls" else net).listen(place, server.accept)
        print("ready", flush=True)
        await asyncio.Event().wait()


async def open_ours(stack: AsyncExitStack, address: Address, variant: str, folder: str) -> tuple[Call, AskCpu]:
    net = await stack.enter_async_context(transport(folder, variant))
    context = PeersContext(transport=net, rng=SystemRng(), introduction=introduction(2), report=discard_event)
    caller, _ = await connect(context, address, ConnectionTarget(Lane.DATA))
    return lambda: caller.call(READ, READ_200, DEADLINE_MS), lambda: caller.call(CPU, CpuRequest(), DEADLINE_MS)


# ---- ours without deadlines, limits, greeting or cancel: what those cost is the difference


class BareRequest(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    id: int
    verb: int
    body: msgspec.Raw


class BareAnswer(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    id: int
    body: msgspec.Raw


_bare = msgspec.msgpack.Decoder(BareRequest | BareAnswer)
_read = msgspec.msgpack.Decoder(Read)
_row = msgspec.msgpack.Decoder(Row)
_cpu = msgspec.msgpack.Decoder(CpuAnswer)


class BareServed:
    def __init__(self, link: Link, tasks: asyncio.TaskGroup) -> None:
        self.link = link
        self.tasks = tasks

    def frame_received(self, frame: bytes) -> None:
        request = _bare.decode(frame)
        if request.verb == CPU.number:
            self.link.send(encode(BareAnswer(request.id, cpu_answer())))  # type: ignore[arg-type]  # encoded in place
        else:
            self.tasks.create_task(self.run(request.id, _read.decode(request.body)))

    async def run(self, request_id: int, request: Read) -> None:
        answer = await read(request, None)
        self.link.send(encode(BareAnswer(request_id, answer)))  # type: ignore[arg-type]  # encoded in place

    def link_closed(self, cause: str) -> None:
        pass


class BareCaller:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.pending: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self.next_id = 1
        self.loop = asyncio.get_running_loop()

    def frame_received(self, frame: bytes) -> None:
        answer = _bare.decode(frame)
        self.pending.pop(answer.id).set_result(answer.body)

    def link_closed(self, cause: str) -> None:
        pass

    async def ask(self, verb: int, body: object) -> msgspec.Raw:
        number = self.next_id
        self.next_id += 1
        answer: asyncio.Future[msgspec.Raw] = self.loop.create_future()
        self.pending[number] = answer
        self.link.send(encode(BareRequest(number, verb, body)))  # type: ignore[arg-type]  # encoded in place
        return await answer

    async def read(self) -> object:
        return _row.decode(await self.ask(READ.number, READ_200))

    async def cpu(self) -> CpuAnswer:
        return _cpu.decode(await self.ask(CPU.number, CpuRequest()))


async def open_bare(stack: AsyncExitStack, address: Address) -> tuple[Call, AskCpu]:
    net = await stack.enter_async_context(transport("", "plain"))
    callers: list[BareCaller] = []

    def on_open(link: Link) -> BareCaller:
        callers.append(BareCaller(link))
        return callers[0]

    await net.connect(address, on_open)
    return callers[0].read, callers[0].cpu


# ---- grpc.aio, with the same codec and a deadline


async def serve_grpc(address: Address) -> None:

    async def grpc_read(request: Read, _context: object) -> Row:
        return await read(request, None)

    async def grpc_cpu(_request: CpuRequest, _context: object) -> CpuAnswer:
        return cpu_answer()

    server = grpc.aio.server()
    methods = {
        "read": grpc.unary_unary_rpc_method_handler(grpc_read, _read.decode, encode),
        "cpu": grpc.unary_unary_rpc_method_handler(grpc_cpu, msgspec.msgpack.Decoder(CpuRequest).decode, encode),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", methods),))
    server.add_insecure_port(str(address))
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


async def open_grpc(stack: AsyncExitStack, address: Address) -> tuple[Call, AskCpu]:

    channel = await stack.enter_async_context(grpc.aio.insecure_channel(str(address)))
    ask_read = channel.unary_unary("/bench/read", encode, _row.decode)
    ask_cpu = channel.unary_unary("/bench/cpu", encode, _cpu.decode)
    return (
        lambda: ask_read(READ_200, timeout=DEADLINE_MS / 1000),
        lambda: ask_cpu(CpuRequest(), timeout=DEADLINE_MS / 1000),
    )


# ---- one measurement


class Figure(msgspec.Struct):
    requests_per_s: float
    p50_us: float
    p99_us: float
    client_cpu_us: float
    server_cpu_us: float

    @property
    def cpu_us(self) -> float:
        return self.client_cpu_us + self.server_cpu_us


async def open_variant(stack: AsyncExitStack, variant: str, address: Address, folder: str) -> tuple[Call, AskCpu]:
    if variant == "grpc":
        return await open_grpc(stack, address)
    place = Address(address.host, address.port + OURS.index(variant))
    if variant == "bare":
        return await open_bare(stack, place)
    return await open_ours(stack, place, variant, folder)


async def measure(cases: list[Case], address: Address, folder: str, rounds: int, seconds: float) -> list[list[Figure]]:
    """For every round a figure of every case, in order."""
    async with AsyncExitStack() as stack:
        opened = {variant: await open_variant(stack, variant, address, folder) for variant, _ in cases}
        for variant, depth in cases:
            await _load(opened[variant][0], depth, seconds)  # warm-up
        return [[await _turn(*opened[variant], depth, seconds) for variant, depth in cases] for _ in range(rounds)]


async def _turn(call: Call, ask_cpu: AskCpu, depth: int, seconds: float) -> Figure:
    server_before, client_before = (await ask_cpu()).cpu_ns, cpu_ns()
    began = time.perf_counter()
    times = await _load(call, depth, seconds)
    took = time.perf_counter() - began
    client_after, server_after = cpu_ns(), (await ask_cpu()).cpu_ns
    times.sort()
    count = len(times)
    return Figure(
        count / took,
        times[count // 2] * 1e6,
        times[min(count - 1, count * 99 // 100)] * 1e6,
        (client_after - client_before) / count / 1000,
        (server_after - server_before) / count / 1000,
    )


async def _load(call: Call, depth: int, seconds: float) -> list[float]:
    clock = time.perf_counter
    end = clock() + seconds
    times: list[float] = []

    async def one() -> None:
        before = clock()
        while before < end:
            await call()
            after = clock()
            times.append(after - before)
            before = after

    async with asyncio.TaskGroup() as tasks:
        for _ in range(depth):
            tasks.create_task(one())
    return times


async def idle(address: Address, folder: str, connections: int, seconds: float) -> dict[str, float]:
    """Server memory and CPU for idle connections with mutual TLS."""
    async with transport(folder, "tls") as net:
        context = PeersContext(
            transport=net,
            rng=SystemRng(),
            introduction=introduction(2),
            limits=WireLimits(connect_ms=20_000),
            report=discard_event,
        )
        address = Address(address.host, address.port + OURS.index("tls"))
        first, _ = await connect(context, address, ConnectionTarget(Lane.DATA))
        before = await first.call(CPU, CpuRequest(), DEADLINE_MS)
        began = time.perf_counter()
        for _ in range(connections):
            await connect(context, address, ConnectionTarget(Lane.DATA))
        opened_s = time.perf_counter() - began
        opened = await first.call(CPU, CpuRequest(), DEADLINE_MS)
        await asyncio.sleep(seconds)
        after = await first.call(CPU, CpuRequest(), DEADLINE_MS)
    return {
        "connections": connections,
        "server_kib_per_connection": (opened.rss_bytes - before.rss_bytes) / connections / 1024,
        "server_cpu_percent": (after.cpu_ns - opened.cpu_ns) / 1e7 / seconds,
        "handshake_ms": opened_s / connections * 1000,
        "server_cpu_ms_per_handshake": (opened.cpu_ns - before.cpu_ns) / 1e6 / connections,
    }


# ---- processes


def run(main: Coroutine[Any, Any, object]) -> object:
    """uvloop for all of them if it is installed: it serves grpc.aio too."""
    factory = None if uvloop is None else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def role(options: argparse.Namespace) -> None:
    host, _, port = options.address.rpartition(":")
    address = Address(host, int(port))
    theirs = options.work == "grpc"
    if options.role == "server":
        run(serve_grpc(address) if theirs else serve_all(address, options.folder))
        return
    if options.work == "idle":
        result = run(idle(address, options.folder, 1000, options.seconds))
    else:
        cases = GRPC_CASES if theirs else OUR_CASES
        result = run(measure(cases, address, options.folder, options.rounds, options.seconds))
    print(msgspec.json.encode(result).decode(), flush=True)


def pair(work: str, rounds: int, seconds: float, folders: dict[str, str]) -> bytes:
    """One server and one client process; the client's last line."""
    source = random.Random(os.urandom(8))
    address = f"127.{source.randrange(1, 255)}.{source.randrange(1, 255)}.1:{source.randrange(20_000, 30_000)}"
    command = [sys.executable, "-m", "benchmarks.bench_messaging", "--work", work, "--address", address]
    server = subprocess.Popen(
        [*command, "--role", "server", "--folder", folders["server"]], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        arguments = ["--folder", folders["client"], "--rounds", str(rounds), "--seconds", str(seconds)]
        client = subprocess.run(
            [*command, "--role", "client", *arguments], stdout=subprocess.PIPE, timeout=120, check=True
        )
        return client.stdout.splitlines()[-1]
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def make_folders(base: str) -> dict[str, str]:
    clock = SystemClock()
    server, client = TlsFolder(Path(base) / "server"), TlsFolder(Path(base) / "client")
    authority = make_authority(CLUSTER, "bench", Validity.days(clock, 1))
    for number, folder in enumerate((server, client), 1):
        folder.store_authority(authority)
        folder.renew(NodeIdentity(introduction(number).host, CLUSTER, "bench"), clock)
    return {"server": str(server.path), "client": str(client.path)}


def compare(blocks: int, rounds: int, folders: dict[str, str]) -> list[dict[Case, Figure]]:
    """Rounds of all cases. A block runs grpc.aio once and our variants several times beside it."""
    found: list[dict[Case, Figure]] = []
    for _ in range(blocks):
        theirs = msgspec.json.decode(pair("grpc", rounds, TURN_S, folders), type=list[list[Figure]])
        ours = msgspec.json.decode(pair("ours", rounds, TURN_S, folders), type=list[list[Figure]])
        found += [
            {**dict(zip(OUR_CASES, line)), **dict(zip(GRPC_CASES, other))}
            for line, other in zip(ours, theirs, strict=True)
        ]
    return found


def ratios_of(rounds: list[dict[Case, Figure]]) -> dict[str, float]:
    def median(ratio: Callable[[dict[Case, Figure]], float]) -> float:
        return statistics.median(map(ratio, rounds))

    def best(case: Case) -> float:
        return max(line[case].requests_per_s for line in rounds)

    return {
        "over_grpc": median(lambda r: r["plain", 64].requests_per_s / r["grpc", 64].requests_per_s),
        "over_grpc_best_turns": best(("plain", 64)) / best(("grpc", 64)),
        "cpu_grpc_over_ours": median(lambda r: r["grpc", 64].cpu_us / r["plain", 64].cpu_us),
        "tls_cpu_over_plain": median(lambda r: r["tls", 64].cpu_us / r["plain", 64].cpu_us),
        "tls_cpu_over_plain_depth1": median(lambda r: r["tls", 1].cpu_us / r["plain", 1].cpu_us),
        "deadline_p50_over_bare_depth1": median(lambda r: r["plain", 1].p50_us / r["bare", 1].p50_us),
        "deadline_cpu_over_bare_depth1": median(lambda r: r["plain", 1].cpu_us / r["bare", 1].cpu_us),
        "deadline_cpu_over_bare_depth64": median(lambda r: r["plain", 64].cpu_us / r["bare", 64].cpu_us),
    }


def print_report(rounds: list[dict[Case, Figure]], idle_figures: dict[str, float]) -> bool:
    figures = {case: _median_figure([line[case] for line in rounds]) for case in rounds[0]}
    for (variant, depth), figure in figures.items():
        print(
            f"{variant:>6} depth {depth:>2}: {figure.requests_per_s:>9,.0f} req/s  p50 {figure.p50_us:>8,.0f} us  "
            f"p99 {figure.p99_us:>8,.0f} us  CPU client {figure.client_cpu_us:>6.1f} us  "
            f"server {figure.server_cpu_us:>6.1f} us"
        )
    print("  idle: " + "  ".join(f"{name} {value:,.2f}" for name, value in idle_figures.items()))
    ratios = ratios_of(rounds)
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}")
    passed = (
        ratios["over_grpc"] >= GRPC_RATIO_MIN
        and ratios["tls_cpu_over_plain"] <= TLS_CPU_RATIO_MAX
        and ratios["deadline_p50_over_bare_depth1"] <= DEADLINE_RATIO_MAX
        and ratios["deadline_cpu_over_bare_depth1"] <= DEADLINE_RATIO_MAX
    )
    summary = {
        "bench": "messaging",
        "passed": passed,
        "loop": "asyncio" if uvloop is None else "uvloop",
        "load_average": os.getloadavg()[0],
        "rounds": len(rounds),
        **{name: round(value, 3) for name, value in ratios.items()},
        "idle": {name: round(value, 3) for name, value in idle_figures.items()},
        "figures": {f"{variant}-{depth}": msgspec.to_builtins(figure) for (variant, depth), figure in figures.items()},
    }
    print(json.dumps(summary))
    return passed


def _median_figure(figures: list[Figure]) -> Figure:
    names = Figure.__struct_fields__
    return Figure(*(round(statistics.median(getattr(figure, name) for figure in figures), 2) for name in names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short block")
    for name in ("role", "work", "address", "folder"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=2.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role(options)
        return 0
    with tempfile.TemporaryDirectory() as base:
        folders = make_folders(base)
        blocks, rounds = (1, 3) if options.quick else (5, 4)
        found = compare(blocks, rounds, folders)
        idle_figures = msgspec.json.decode(pair("idle", 1, 5.0, folders), type=dict[str, float])
    return 0 if print_report(found, idle_figures) else 1


if __name__ == "__main__":
    sys.exit(main())

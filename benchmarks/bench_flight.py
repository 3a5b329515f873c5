"""Files from one node's Flight server to another's through one client, against one raw TLS stream, and scans of rows.

    python -m benchmarks.bench_flight [--megabytes 1024] [--rounds 3] [--rows 1000000] [--quick]

Two server processes with certificates of one authority on loopback, the Flight servers and the puts of the bulk
process, and one client process that moves files of 64 MB as a task does. In turns with it, the same files over one TLS
stream of Python's `ssl`, read by the sender and written to a file by the receiver. Spark is not here: `bench_transfers`
has it. CPU is user plus system time of each process, per gigabyte. Then stored rows, typed rows and hashes of one
checkpoint, each by a scan worker, in rows per second. The last line is JSON.
"""

import argparse
import asyncio
import json
import mmap
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil

from benchmarks.figures import Figures
from ebla.bulk.flight_server import FlightCertificate, FlightServer
from ebla.bulk.open_puts import OpenPuts
from ebla.bulk.staging import StagedTransfer, Staging
from ebla.bulk.stream_service import IncomingPut, SourceStream, StagedRowsSource
from ebla.bulk.tickets import KEY_BYTES, TicketSigner
from ebla.bulk.transfer_context import ShardCaller, TransferContext
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.model.cql_types import parse_type
from ebla.model.identity import (
    Address,
    AttemptId,
    CheckpointId,
    ClusterId,
    HostId,
    SessionId,
    ShardNumber,
    TableId,
    TransferId,
)
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector
from ebla.model.token import WHOLE_RING, TokenRange, token_of
from ebla.model.transfers import (
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    StagingKind,
    TransferSource,
    TransferTarget,
)
from ebla.observe.event_reporter import discard_event
from ebla.observe.metrics import Metrics
from ebla.runtime.data_folder import NodeIdentity
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.file_isolation import FileIsolation
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tls import TlsFolder, Validity, make_authority
from ebla.storage.codec.key_codec import partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.codec.staging_format import TargetFile
from ebla.storage.layers.layer import build_layer
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.manifest import Incarnation
from ebla.transfers.flight_client import CheckpointFileRef, FlightClient
from ebla.wire.transfer_messages import FlightPut, HashesQuery, PutAnswer, TypedRowsQuery

RATIO_MIN = 0.5
"""The whole path, with Spark, must reach 0.4."""
FILE_BYTES = 64 << 20
CLUSTER = ClusterId(uuid.UUID(int=0xC))
HOST = HostId(uuid.UUID(int=1))
SESSION = SessionId(uuid.UUID(int=2))
TRANSFER = TransferId(uuid.UUID(int=3))
CHECKPOINT = CheckpointId(uuid.UUID(int=4))
TABLE = TableId(uuid.UUID(int=5))
SCHEMA = new_schema(
    TABLE,
    "ks",
    "bench",
    (
        Column(name="k", type=parse_type("bigint"), kind=ColumnKind.PARTITION_KEY),
        Column(name="a", type=parse_type("bigint"), kind=ColumnKind.REGULAR),
        Column(name="b", type=parse_type("double"), kind=ColumnKind.REGULAR),
        Column(name="t", type=parse_type("text"), kind=ColumnKind.REGULAR),
    ),
)


class BenchService:
    """`bulk.stream_service.StreamService` with the real puts, without sessions and tickets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        context = TransferContext(
            disk=FileDisk(),
            rng=SystemRng(),
            clock=SystemClock(),
            report=discard_event,
            limits=TransferLimits(),
            metrics=TransferMetrics(Metrics()),
            view=TopologyView(),
            guards=cast("SessionGuards", None),
            tickets=TicketSigner(bytes(KEY_BYTES)),
            shards=cast("ShardCaller", None),
            host=HOST,
            machine="machine",
            isolation=FileIsolation(),
            building=BulkWorkers(),
            staging_folder=str(folder / "staging"),
            checkpoints_folder=str(folder / "checkpoints"),
        )
        self._puts = OpenPuts(context, Staging(context))
        target = TargetFile(
            table=TABLE, shard=ShardNumber(0), incarnation=Incarnation(1), range=WHOLE_RING, kind=StagingKind.FILES
        )
        self._staged = StagedTransfer(session=SESSION, transfer=TRANSFER, folder=str(folder / "staging"), target=target)

    def open_source(self, _ticket: bytes) -> SourceStream:
        folder = self._folder / "checkpoint"
        return SourceStream(
            session=SESSION, checkpoint=CHECKPOINT, folder=str(folder), parts=listed(folder), schema=SCHEMA
        )

    async def open_read(self, ticket: bytes, _asked: TokenRange, _run: str = "") -> SourceStream:
        return self.open_source(ticket)

    def open_staged(self, _ticket: bytes, _attempt: AttemptId) -> StagedRowsSource:
        raise AssertionError("the benchmark reads no staging")

    async def admit_sending(self, source: SourceStream, size_bytes: int) -> None:
        pass

    def close_source(self, source: SourceStream) -> None:
        pass

    async def open_put(self, put: FlightPut) -> IncomingPut:
        return await self._puts.open(self._staged, put)

    async def append(self, place: IncomingPut, data: bytes | memoryview) -> None:
        await self._puts.append(place, data)

    async def finish_put(self, place: IncomingPut) -> PutAnswer:
        return self._puts.finish(place)

    def close_put(self, place: IncomingPut) -> None:
        self._puts.close(place)


def listed(folder: Path) -> tuple[CheckpointPart, ...]:
    layers = tuple(
        CheckpointLayer(
            folder=layer.name,
            range=WHOLE_RING,
            files=tuple(CheckpointFile(file.name, file.stat().st_size) for file in sorted(layer.iterdir())),
        )
        for layer in sorted(folder.iterdir())
    )
    return (CheckpointPart(shard=ShardNumber(0), range=WHOLE_RING, layers=layers),)


# ---- the server process


async def serve(folder: Path) -> None:
    workers = BulkWorkers()
    certificate = TlsFolder(folder.parent / "tls").node_certificate()
    server = FlightServer(BenchService(folder), workers, discard_event)
    identity = FlightCertificate(certificate.certificate_pem, certificate.key_pem)
    address = server.listen(Address("127.0.0.1", 0), identity)
    print(address.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.close()
    await workers.close()
    raise SystemExit(0)


@contextmanager
def served(folder: Path) -> Iterator[tuple[psutil.Process, Address]]:
    folder.mkdir(exist_ok=True)
    (folder / "checkpoint").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.bench_flight", "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield psutil.Process(process.pid), Address("127.0.0.1", int(process.stdout.readline()))
        finally:
            process.kill()


# ---- files


def move_all(client: FlightClient, source: TransferSource, target: TransferTarget) -> None:
    attempt = AttemptId(uuid.uuid4())
    for place, layer in enumerate(source.parts[0].layers):
        for file in layer.files:
            client.move_file(source, CheckpointFileRef(0, place, file.name), target, attempt, f"{place}/{file.name}")


def raw_receiver(folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "tls" / "node.pem", folder / "tls" / "node.key")
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "raw").open("wb", buffering=0) as file:
        print(listener.getsockname()[1], flush=True)
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as stream:
            buffer = memoryview(bytearray(1 << 20))
            expected = int.from_bytes(stream.recv(8))
            while expected:
                count = stream.recv_into(buffer)
                assert count
                file.write(buffer[:count])
                expected -= count
            stream.sendall(b"done")


def send_raw(folder: Path, files: list[Path]) -> tuple[float, float]:
    """Seconds, and CPU seconds of both sides."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(folder / "tls" / "authority.pem")
    command = [sys.executable, "-m", "benchmarks.bench_flight", "--raw", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        cpu = cpu_s(psutil.Process(process.pid)) + time.process_time()
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as stream:
            begun = time.perf_counter()
            stream.sendall(sum(file.stat().st_size for file in files).to_bytes(8))
            for path in files:
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    with memoryview(mapped) as view:
                        for start in range(0, len(view), 1 << 20):
                            with view[start : start + (1 << 20)] as piece:
                                stream.sendall(piece)
            assert stream.recv(4) == b"done"
            took = time.perf_counter() - begun
            cpu = cpu_s(psutil.Process(process.pid)) + time.process_time() - cpu
    return took, cpu


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def bench_files(folder: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    files = []
    layer = folder / "source" / "checkpoint" / "0"
    layer.mkdir(parents=True)
    for number in range(max(1, (arguments.megabytes << 20) // FILE_BYTES)):
        path = layer / f"{number:06}.sst"
        path.write_bytes(os.urandom(FILE_BYTES))
        files.append(path)
    size = sum(path.stat().st_size for path in files)
    authority = (folder / "tls" / "authority.pem").read_bytes()
    rates: dict[str, list[float]] = {"raw": [], "flight": []}
    cpus: list[list[float]] = []
    with served(folder / "source") as (first, from_address), served(folder / "target") as (second, to_address):
        source = TransferSource(
            host=HOST, checkpoint=CHECKPOINT, table=TABLE, parts=listed(layer.parent), ticket=b"", flight=from_address
        )
        target = TransferTarget(
            host=HOST,
            shard=ShardNumber(0),
            session=SESSION,
            transfer=TRANSFER,
            kind=StagingKind.FILES,
            range=WHOLE_RING,
            ticket=b"",
            flight=to_address,
        )
        with FlightClient(authority) as client:
            for number in range(arguments.rounds):
                # In turns: the first writer gets the pages that were freed last, which cost least.
                for name in ("raw", "flight") if number % 2 else ("flight", "raw"):
                    if name == "raw":
                        took, raw_cpu = send_raw(folder, files)
                        rates[name].append(size / took / 1e6)
                        continue
                    before = [cpu_s(first), cpu_s(second), time.process_time()]
                    begun = time.perf_counter()
                    move_all(client, source, target)
                    rates[name].append(size / (time.perf_counter() - begun) / 1e6)
                    after = [cpu_s(first), cpu_s(second), time.process_time()]
                cpus.append([raw_cpu, *(late - early for early, late in zip(before, after))])
                shutil.rmtree(folder / "target" / "staging")
                (folder / "raw").unlink()
    print(f"raw TLS stream: {statistics.median(rates['raw']):.0f} MB/s ({spread(rates['raw'])})")
    print(f"Flight to Flight: {statistics.median(rates['flight']):.0f} MB/s ({spread(rates['flight'])})")
    for name, place in (("raw_both", 0), ("source", 1), ("target", 2), ("client", 3)):
        value = figures.note(f"cpu_s_per_gb_{name}", statistics.median(row[place] for row in cpus) / size * 1e9)
        print(f"CPU of {name}: {value:.2f} s/GB")
    ratio = statistics.median(flight / raw for flight, raw in zip(rates["flight"], rates["raw"]))
    figures.note("raw_mb_per_s", statistics.median(rates["raw"]))
    figures.note("flight_mb_per_s", statistics.median(rates["flight"]))
    print(f"Flight against raw: {ratio:.2f} ({figures.at_least('flight_over_raw', ratio, RATIO_MIN)})")


def spread(rates: list[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)


# ---- rows


async def build_rows(folder: Path, count: int) -> None:
    disk = FileDisk()
    numbers = [column.number for column in SCHEMA.regular]
    values = [b"\0" * 8, b"\x3f\xf0" + b"\0" * 6, b"some text of a row, which is not long"]
    value = encode_row(
        Row(
            marker=RowMarker(1),
            deletion=None,
            cells={number: Cell(timestamp_us=1, value=data) for number, data in zip(numbers, values)},
        ),
        1,
        SCHEMA.layouts[-1],
    )
    keys = (number.to_bytes(8) for number in range(count))
    items = sorted((row_key(partition_prefix(token_of(key), key)), value) for key in keys)
    await build_layer(RocksEngine(disk), str(folder), items, LayerFacts(least_us=1, greatest_us=1, rows=count))
    disk.close()


def bench_rows(folder: Path, count: int, figures: Figures) -> None:
    (folder / "rows" / "checkpoint").mkdir(parents=True)
    asyncio.run(build_rows(folder / "rows" / "checkpoint" / "0", count))
    authority = (folder / "tls" / "authority.pem").read_bytes()
    asked = TypedRowsQuery(
        range=WHOLE_RING, columns=tuple(ColumnSelector(column.name) for column in SCHEMA.columns), now_s=0
    )
    with served(folder / "rows") as (_, address), FlightClient(authority) as client:
        source = TransferSource(host=HOST, checkpoint=CHECKPOINT, table=TABLE, parts=(), ticket=b"", flight=address)
        client.get_hashes(source, HashesQuery(WHOLE_RING, 1, 0))  # the worker starts

        def stored() -> int:
            return sum(len(batch) for batch in client.get_rows(source, WHOLE_RING))

        def typed() -> int:
            return sum(len(batch) for batch in client.get_batches(source, asked))

        def hashes() -> int:
            found = client.get_hashes(source, HashesQuery(WHOLE_RING, 256, 0))
            return int(sum(found.column("rows").to_pylist()))

        for name, ask in (("stored", stored), ("typed", typed), ("hashes", hashes)):
            begun = time.perf_counter()
            rows = ask()
            assert rows == count
            rate = figures.note(f"{name}_rows_per_s", rows / (time.perf_counter() - begun))
            print(f"{name} rows: {rate:,.0f} rows/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="256 MB, one round, 100 000 rows")
    parser.add_argument(
        "--folder", type=Path, help="where files are written; the system's temporary folder if not said"
    )
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--raw", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve))
    elif arguments.raw is not None:
        raw_receiver(arguments.raw)
    else:
        return bench(arguments)
    return 0


def bench(arguments: Any) -> int:
    if arguments.quick:
        arguments.megabytes, arguments.rounds, arguments.rows = 256, 1, 100_000
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        tls = TlsFolder(folder / "tls")
        tls.store_authority(make_authority(CLUSTER, "bench", Validity.days(SystemClock(), 1)))
        tls.renew(NodeIdentity(HOST, CLUSTER, "bench"), SystemClock())
        bench_files(folder, arguments, figures)
        bench_rows(folder, arguments.rows, figures)
    print(json.dumps(figures.values))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())

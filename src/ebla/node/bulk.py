"""The bulk process: compactions, layer builds and scans in worker processes, and streams over Flight, all at low
priority."""

import asyncio
import os
import signal
import sys
from functools import partial
from typing import NoReturn

from ebla.bulk.bulk_process import BulkConfig, BulkProcess
from ebla.bulk.bulk_transfers import TransferConfig
from ebla.bulk.compaction_service import CompactionServiceLimits
from ebla.bulk.flight_server import FlightCertificate, FlightServer
from ebla.bulk.flight_streams import FlightLimits
from ebla.bulk.stream_service import StreamService
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.model.identity import Address
from ebla.node.process import (
    child_parser,
    identity_of,
    on_signal,
    reload_tls,
    reporter,
    run_child,
    run_process,
    run_until_stopped,
)
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeOptions
from ebla.ports.environment import Environment
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, NodeIdentity
from ebla.runtime.file_disk import DiskConfig, FileDisk
from ebla.runtime.file_isolation import FileIsolation
from ebla.runtime.machine_id import machine_id
from ebla.runtime.priorities import lower_session_priority, lower_thread_priority
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits

NAME = "bulk"
NICENESS = 5
"""Serving comes first. Its folds and streams go lower still, or they would keep it from telling control that it
lives."""
STREAMS_NICENESS = 10
"""Beyond that."""
BULK_DISK = DiskConfig(sync_threads=4, work_threads=4, work_niceness=STREAMS_NICENESS, step_bytes=4 << 20)


def main() -> NoReturn:
    code = run_child(child_parser("The process of a node for long work on files").parse_args(), _run_bulk)
    # At an ordinary exit pyarrow waits for every stream, and a reader that sleeps would keep the process until it is
    # killed. What had to be closed is closed by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_bulk(options: NodeOptions, _open_files: int) -> None:
    os.nice(NICENESS)
    # Of handshakes that fail gRPC would write lines of its own among ours.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    identity = identity_of(options)
    with file_lock.acquire(DataFolder(options.folder).bulk_lock):
        run_process(_run(options, identity, reporter(SystemClock(), NAME, options.log_format)))


async def _run(options: NodeOptions, identity: NodeIdentity, report: EventReporter) -> None:
    folder = DataFolder(options.folder)
    on_signal(signal.SIGHUP, lambda: reload_tls((tls, front), report))
    tls = NodeTls(TlsFolder(folder.tls))
    workers = BulkWorkers()
    front = FlightService(options.flight_address, TlsFolder(folder.tls), workers, report)
    async with TcpTransport(tls, TransportLimits(), report) as transport:
        bulk = BulkProcess(
            Environment(clock=SystemClock(), rng=SystemRng(), disk=FileDisk(BULK_DISK), transport=transport),
            BulkConfig(
                introduction=Introduction(
                    host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process=NAME
                ),
                address=Address(str(folder.bulk_socket)),
                control_address=Address(str(folder.control_socket)),
                heartbeat_ms=options.limits.child_heartbeat_ms,
                compactions=CompactionServiceLimits(
                    compactions_max=options.limits.folds_max, compaction_ms=options.limits.fold_ms
                ),
                wire=WireLimits(),
                report=report,
                pid=os.getpid(),
                transfers=_transfers(options, folder, front, workers),
            ),
            workers,
        )
        try:
            await run_until_stopped(bulk.run())
        finally:
            await workers.close()


def _transfers(
    options: NodeOptions, folder: DataFolder, front: "FlightService", workers: BulkWorkers
) -> TransferConfig:
    return TransferConfig(
        staging_folder=str(folder.staging),
        checkpoints_folder=str(folder.checkpoints),
        flight=options.flight_address,
        peers_address=options.bulk_address,
        shard_address=lambda number: Address(str(folder.shard_socket(number))),
        machine=machine_id(),
        isolation=FileIsolation(),
        building=workers,
        fronts=(front.serve,),
        limits=TransferLimits(
            puts_max=options.limits.transfers_max,
            gets_max=2 * options.limits.transfers_max,
            bytes_per_s=options.limits.transfer_bytes_per_second_max,
            free_bytes_min=options.limits.free_disk_bytes_min,
        ),
    )


class FlightService:
    """`bulk.bulk_transfers.StreamServer`: serves the streams over Flight."""

    def __init__(self, address: Address, tls: TlsFolder, workers: BulkWorkers, report: EventReporter) -> None:
        self._address = address
        self._tls = tls
        self._workers = workers
        self._report = report
        self._server: FlightServer | None = None

    async def serve(self, stream_service: StreamService) -> None:
        """Until cancelled. Raises where the address is taken."""
        lower_priority = partial(lower_thread_priority, STREAMS_NICENESS)
        server = self._server = FlightServer(
            stream_service, self._workers, FlightLimits(), self._report, lower_priority
        )
        server.listen(self._address, self._identity())
        await asyncio.to_thread(lower_session_priority, NICENESS)
        try:
            await asyncio.Event().wait()
        finally:
            await server.close()

    def reload(self) -> None:
        if self._server is not None:
            self._server.reload(self._identity())

    def _identity(self) -> FlightCertificate:
        certificate = self._tls.node_certificate()
        return FlightCertificate(certificate.certificate_pem, certificate.key_pem)


if __name__ == "__main__":
    main()

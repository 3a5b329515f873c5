"""The entry of the bulk process: compactions, layer builds and scans in worker processes, streams over Arrow Flight.
All of it runs at low priority."""

import asyncio
import os
import sys
from functools import partial
from typing import NoReturn

from ebla.bulk.bulk_transfers import TransferConfig
from ebla.bulk.flight_server import FlightCertificate, FlightServer
from ebla.bulk.stream_service import StreamService
from ebla.bulk.transfer_context import Isolation, RowLayerBuilder
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_service import StreamServer
from ebla.bulk.workers.bulk_workers import BulkWorkers
from ebla.node.bulk_process import NAME, BulkProcess
from ebla.node.context import NodeContext
from ebla.node.process import (
    child_context,
    child_environment,
    child_parser,
    run_child,
    run_process,
    run_until_stopped,
)
from ebla.options import NodeOptions
from ebla.runtime import file_lock
from ebla.runtime.file_disk import DiskConfig, FileDisk
from ebla.runtime.file_isolation import FileIsolation
from ebla.runtime.machine_id import machine_id
from ebla.runtime.priorities import lower_session_priority, lower_thread_priority
from ebla.runtime.tls import TlsFolder

NICENESS = 5
"""Serving comes first. Compactions and streams run at a still lower priority, or they would delay the heartbeats of
this process."""
STREAMS_NICENESS = 10
"""Added to that of the process."""
BULK_DISK = DiskConfig(sync_threads=4, work_threads=4, work_niceness=STREAMS_NICENESS, step_bytes=4 << 20)


def main() -> NoReturn:
    code = run_child(child_parser("The process of a node for long work on files").parse_args(), _run_bulk)
    # At a normal exit pyarrow waits for every stream, and a sleeping reader would hold the process until it is killed.
    # Everything that must be closed is closed by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_bulk(options: NodeOptions, _open_files: int) -> None:
    os.nice(NICENESS)
    # gRPC would write its own lines about failed handshakes into our log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    node = child_context(options, NAME)
    with file_lock.acquire(node.folder.bulk_lock):
        run_process(_run(node))


async def _run(node: NodeContext) -> None:
    workers = BulkWorkers()
    flight = FlightService(node, TlsFolder(node.folder.tls), workers)
    transfers = transfer_config(
        node, machine=machine_id(), isolation=FileIsolation(), builder=workers, streams=flight.serve
    )
    async with child_environment(node, FileDisk(BULK_DISK), [flight]) as environment:
        try:
            await run_until_stopped(BulkProcess(environment, node, workers, transfers).run())
        finally:
            await workers.close()


def transfer_config(
    node: NodeContext, *, machine: str, isolation: Isolation, builder: RowLayerBuilder, streams: StreamServer
) -> TransferConfig:
    options, limits = node.options, node.limits
    return TransferConfig(
        staging_folder=str(node.folder.staging),
        checkpoints_folder=str(node.folder.checkpoints),
        flight=options.flight_address,
        peers_address=options.bulk_address,
        shard_address=node.shard_socket,
        machine=machine,
        isolation=isolation,
        building=builder,
        servers=(streams,),
        limits=TransferLimits(
            puts_max=limits.transfers_max,
            gets_max=2 * limits.transfers_max,
            bytes_per_s=limits.transfer_bytes_per_second_max,
            free_bytes_min=limits.free_disk_bytes_min,
        ),
    )


class FlightService:
    """The Arrow Flight server. Its `serve` is a `bulk.transfer_service.StreamServer`."""

    def __init__(self, node: NodeContext, tls: TlsFolder, workers: BulkWorkers) -> None:
        self._node = node
        self._tls = tls
        self._workers = workers
        self._server: FlightServer | None = None

    async def serve(self, streams: StreamService) -> None:
        """Until cancelled. Raises if the address is in use."""
        lower_priority = partial(lower_thread_priority, STREAMS_NICENESS)
        server = FlightServer(streams, self._workers, self._node.report, lower_priority)
        self._server = server
        server.listen(self._node.options.flight_address, self._certificate())
        await asyncio.to_thread(lower_session_priority, NICENESS)
        try:
            await asyncio.Event().wait()
        finally:
            await server.close()

    def reload(self) -> None:
        if self._server is not None:
            self._server.reload(self._certificate())

    def _certificate(self) -> FlightCertificate:
        certificate = self._tls.node_certificate()
        return FlightCertificate(certificate.certificate_pem, certificate.key_pem)


if __name__ == "__main__":
    main()

"""The bulk process: folds in processes of their own, all of it at low priority."""

import os
import signal
import sys

from ebla.bulk.bulk_process import BulkProcess, BulkSetup
from ebla.bulk.fold_desk import DeskLimits
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
from ebla.options import NodeOptions
from ebla.ports.surroundings import Surroundings
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, Identity
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.folding import FoldProcesses
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.report import Report

NAME = "bulk"
NICENESS = 5
"""Serving comes first. Its folds go lower still, or they would keep it from telling control that it lives."""


def main() -> int:
    return run_child(child_parser("The process of a node for long work on files").parse_args(), _run_bulk)


def _run_bulk(options: NodeOptions, _open_files: int) -> None:
    os.nice(NICENESS)
    identity = identity_of(options)
    with file_lock.acquire(DataFolder(options.folder).bulk_lock):
        run_process(_run(options, identity, reporter(SystemClock(), NAME, options.log_format)))


async def _run(options: NodeOptions, identity: Identity, report: Report) -> None:
    folder = DataFolder(options.folder)
    on_signal(signal.SIGHUP, lambda: reload_tls((tls,), report))
    tls = NodeTls(TlsFolder(folder.tls))
    async with TcpTransport(tls, TransportLimits(), report) as transport:
        bulk = BulkProcess(
            Surroundings(SystemClock(), SystemChance(), FileDisk(), transport),
            BulkSetup(
                introduction=Introduction(identity.host, identity.cluster, identity.cluster_name, NAME),
                address=Address(str(folder.bulk_socket)),
                control_address=Address(str(folder.control_socket)),
                heartbeat_ms=options.limits.child_heartbeat_ms,
                desk=DeskLimits(folds_max=options.limits.folds_max, fold_ms=options.limits.fold_ms),
                wire=WireLimits(),
                report=report,
                pid=os.getpid(),
            ),
            FoldProcesses(),
        )
        await run_until_stopped(bulk.run())


if __name__ == "__main__":
    sys.exit(main())

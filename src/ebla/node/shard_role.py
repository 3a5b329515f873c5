"""A shard: its part of the tables on RocksDB, and its doors on the network and inside the node."""

import os
import signal
import sys
from functools import partial

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
from ebla.replica.shard_process import ShardProcess, ShardSetup
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, Identity
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.report import Report


def main() -> int:
    parser = child_parser("A data process of a node")
    parser.add_argument("--number", type=int, required=True)
    chosen = parser.parse_args()
    return run_child(chosen, partial(_run_shard, chosen.number))


def _run_shard(number: int, options: NodeOptions, _open_files: int) -> None:
    identity = identity_of(options)
    with file_lock.acquire(DataFolder(options.folder).shard_lock(number)):
        report = reporter(SystemClock(), f"shard-{number}", options.log_format)
        run_process(_run(options, identity, number, report))


async def _run(options: NodeOptions, identity: Identity, number: int, report: Report) -> None:
    folder = DataFolder(options.folder)
    on_signal(signal.SIGHUP, lambda: reload_tls(tls, report))
    tls = NodeTls(TlsFolder(folder.tls))
    async with TcpTransport(tls, TransportLimits(), report) as transport:
        shard = ShardProcess(
            Surroundings(SystemClock(), SystemChance(), FileDisk(), transport),
            ShardSetup(
                introduction=Introduction(identity.host, identity.cluster, identity.cluster_name, f"shard-{number}"),
                address=options.shard_address(number),
                control_address=Address(str(folder.control_socket)),
                heartbeat_ms=options.limits.child_heartbeat_ms,
                feed_silence_ms=options.limits.feed_silence_ms,
                wire=WireLimits(),
                report=report,
                pid=os.getpid(),
            ),
        )
        await run_until_stopped(shard.run())


if __name__ == "__main__":
    sys.exit(main())

"""The entry of a shard process: a shard on RocksDB, TCP and TLS, with a CQL server."""

import signal
import sys
from functools import partial

from ebla.model.identity import ShardNumber
from ebla.node.context import NodeContext
from ebla.node.cql_service import CqlService
from ebla.node.process import (
    CHILD_STOP_SHARE,
    child_context,
    child_parser,
    on_signal,
    reload_tls,
    run_child,
    run_process,
    run_until_stopped,
)
from ebla.node.shard_process import ShardConfig, ShardDeps, ShardProcess
from ebla.options import NodeOptions
from ebla.ports.environment import Environment
from ebla.replica.replica_limits import ReplicaLimits
from ebla.request.router_types import RouterLimits
from ebla.runtime import file_lock
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.priorities import raise_serving_priority, shorten_thread_slice
from ebla.runtime.process_limits import layers_open_max
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import CqlServerTls, NodeTls, TlsFolder
from ebla.storage.commit_log import CommitLogLimits
from ebla.storage.layers.rocks_engine import RocksEngine, RocksLimits
from ebla.storage.store import StoreLimits

DRAIN_SHARE = 0.2
"""The part of a child's time to stop that running requests get."""
FLUSH_SHARE = 0.6


def main() -> int:
    parser = child_parser("A data process of a node")
    parser.add_argument("--number", type=int, required=True)
    chosen = parser.parse_args()
    return run_child(chosen, partial(_run_shard, ShardNumber(chosen.number)))


def _run_shard(number: ShardNumber, options: NodeOptions, open_files: int) -> None:
    raise_serving_priority()
    shorten_thread_slice()
    node = child_context(options, f"shard-{number}")
    with file_lock.acquire(node.folder.shard_lock(number)):
        run_process(_run(node, number, open_files))


async def _run(node: NodeContext, number: ShardNumber, open_files: int) -> None:
    tls_folder = TlsFolder(node.folder.tls)
    # Before the certificates are read, or a change in between would be missed until the next one.
    on_signal(signal.SIGHUP, lambda: reload_tls((tls, cql_tls), node.report))
    tls, cql_tls = NodeTls(tls_folder), CqlServerTls(tls_folder)
    async with TcpTransport(tls, TransportLimits(), node.report) as transport:
        disk = FileDisk()
        deps = ShardDeps(
            engine=RocksEngine(disk, rocks_limits(node.options)),
            services=lambda context: (CqlService(context, node, cql_tls),),
        )
        environment = Environment(clock=SystemClock(), rng=SystemRng(), disk=disk, transport=transport)
        config = shard_config(node, number, store_limits(node.options, open_files))
        await run_until_stopped(ShardProcess(environment, config, deps).run())


def shard_config(node: NodeContext, number: ShardNumber, store: StoreLimits) -> ShardConfig:
    options, limits = node.options, node.options.limits
    return ShardConfig(
        introduction=node.introduction(f"shard-{number}"),
        number=number,
        folder=str(node.folder.shard(number).absolute()),
        address=options.shard_address(number),
        shard_port_first=options.ports.shards_from,
        local_address_of=node.shard_socket,
        control_address=node.control_socket,
        bulk_address=node.bulk_socket,
        datacenter=options.datacenter,
        heartbeat_ms=limits.child_heartbeat_ms,
        feed_silence_ms=limits.feed_silence_ms,
        report=node.report,
        pid=node.pid,
        store=store,
        replica=replica_limits(options),
        router=RouterLimits(
            write_bytes_in_flight_max=limits.shard_requests_bytes_max,
            write_timeout_ms_max=limits.write_timeout_ms,
            read_timeout_ms_max=max(limits.read_timeout_ms, limits.scan_timeout_ms),
        ),
    )


def store_limits(options: NodeOptions, open_files: int) -> StoreLimits:
    limits = options.limits
    return StoreLimits(
        log=CommitLogLimits(mode=options.commit_log, period_ms=limits.commit_log_period_ms),
        layers_open_max=layers_open_max(open_files),
        free_bytes_min=limits.free_disk_bytes_min,
    )


def replica_limits(options: NodeOptions) -> ReplicaLimits:
    """A shard must end before control kills it: otherwise unflushed rows have to be replayed."""
    stop_ms = int(options.limits.stop_ms * CHILD_STOP_SHARE)
    return ReplicaLimits(
        adopted_layers_max=options.limits.adopted_layers_max,
        drain_ms=int(stop_ms * DRAIN_SHARE),
        stop_ms=int(stop_ms * FLUSH_SHARE),
    )


def rocks_limits(options: NodeOptions) -> RocksLimits:
    return RocksLimits(
        write_buffers_total_bytes=options.limits.shard_unflushed_bytes_max,
        cache_bytes=options.limits.shard_cache_bytes_max,
    )


if __name__ == "__main__":
    sys.exit(main())

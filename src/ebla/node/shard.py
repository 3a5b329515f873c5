"""A shard: its part of the tables on RocksDB, its router, and its doors on the network and inside the node."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial

from ebla.broker.broker_deps import BrokerLimits
from ebla.cql.authentication import (
    AllowAllAuthentication,
    ClientAuthentication,
    PasswordAuthentication,
    parse_password_hash,
)
from ebla.cql.executor import ExecutorLimits
from ebla.cql.server.connection import ConnectionLimits
from ebla.cql.server.cql_server import CqlServerLimits
from ebla.model.identity import Address, HostId, ShardNumber
from ebla.node.cql_service import BrokerConfig, CqlConfig, cql_services
from ebla.node.process import (
    CHILD_STOP_SHARE,
    child_parser,
    identity_of,
    on_signal,
    reload_tls,
    reporter,
    run_child,
    run_process,
    run_until_stopped,
)
from ebla.node.router_service import RouterConfig
from ebla.observe.metrics import Metrics
from ebla.options import Authenticator, ClientTls, NodeOptions, flatten
from ebla.ports.environment import Environment
from ebla.replica.replica_limits import ReplicaLimits
from ebla.replica.shard_process import ShardConfig, ShardProcess
from ebla.replica.shard_services import ShardDeps
from ebla.request.router_types import RouterLimits
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, NodeIdentity
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
from ebla.transfers.cluster_client import ClusterAddresses
from ebla.version import release
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits

DRAIN_SHARE = 0.2
"""Of the time it has to end, what requests under way are given."""
FLUSH_SHARE = 0.6


def main() -> int:
    parser = child_parser("A data process of a node")
    parser.add_argument("--number", type=int, required=True)
    chosen = parser.parse_args()
    return run_child(chosen, partial(_run_shard, ShardNumber(chosen.number)))


def _run_shard(number: ShardNumber, options: NodeOptions, open_files: int) -> None:
    raise_serving_priority()
    shorten_thread_slice()
    identity = identity_of(options)
    with file_lock.acquire(DataFolder(options.folder).shard_lock(number)):
        run_process(_run(options, _setup(options, identity, number, open_files)))


async def _run(options: NodeOptions, setup: ShardConfig) -> None:
    folder = DataFolder(options.folder)
    tls_folder = TlsFolder(folder.tls)
    on_signal(signal.SIGHUP, lambda: reload_tls((tls, front_tls), setup.report))
    tls, front_tls = NodeTls(tls_folder), CqlServerTls(tls_folder)
    async with TcpTransport(tls, TransportLimits(), setup.report) as transport:
        disk = FileDisk()
        parts = ShardDeps(
            engine=RocksEngine(disk, rocks_limits(options)),
            metrics=Metrics(),
            services=cql_services(_router_setup(options), _cql_setup(options, front_tls, setup.introduction.host)),
        )
        environment = Environment(clock=SystemClock(), rng=SystemRng(), disk=disk, transport=transport)
        await run_until_stopped(ShardProcess(environment, setup, parts).run())


def _setup(options: NodeOptions, identity: NodeIdentity, number: ShardNumber, open_files: int) -> ShardConfig:
    folder = DataFolder(options.folder)
    return ShardConfig(
        introduction=Introduction(
            host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process=f"shard-{number}"
        ),
        number=number,
        folder=str(folder.shard(number).absolute()),
        address=options.shard_address(number),
        local_address_of=partial(_socket_of, folder),
        control_address=Address(str(folder.control_socket)),
        heartbeat_ms=options.limits.child_heartbeat_ms,
        feed_silence_ms=options.limits.feed_silence_ms,
        wire=WireLimits(),
        report=reporter(SystemClock(), f"shard-{number}", options.log_format),
        pid=os.getpid(),
        bulk_address=Address(str(folder.bulk_socket)),
        store=store_limits(options, open_files),
        limits=replica_limits(options),
    )


def _socket_of(folder: DataFolder, number: ShardNumber) -> Address:
    return Address(str(folder.shard_socket(number)))


def _router_setup(options: NodeOptions) -> RouterConfig:
    return RouterConfig(
        datacenter=options.datacenter,
        shards_from=options.ports.shards_from,
        socket_of=partial(_socket_of, DataFolder(options.folder)),
        write_timeout_ms=options.limits.write_timeout_ms,
        read_timeout_ms=max(options.limits.read_timeout_ms, options.limits.scan_timeout_ms),
        limits=RouterLimits(write_bytes_in_flight_max=options.limits.shard_requests_bytes_max),
    )


def _cql_setup(options: NodeOptions, tls: CqlServerTls, host: HostId) -> CqlConfig:
    folder, limits = DataFolder(options.folder), options.limits
    return CqlConfig(
        addresses=options.cql_addresses,
        shard_count=options.shards,
        control_address=Address(str(folder.control_socket)),
        passing_path_of=lambda number: str(folder.shard_passing_socket(number)),
        release=release(),
        config=partial(visible_options, options),
        login=_login(options),
        tls=tls.context if options.client_tls is ClientTls.ON else None,
        execution=ExecutorLimits(
            write_ms=limits.write_timeout_ms,
            read_ms=limits.read_timeout_ms,
            scan_ms=limits.scan_timeout_ms,
            schema_ms=limits.schema_timeout_ms,
        ),
        connection=ConnectionLimits(
            request_bytes_max=limits.cql_request_bytes_max,
            requests_max=limits.cql_requests_max,
            all_requests_bytes_max=limits.shard_requests_bytes_max,
        ),
        server=CqlServerLimits(connections_max=limits.cql_connections_max),
        broker=_broker_setup(options, host),
    )


def _broker_setup(options: NodeOptions, host: HostId) -> BrokerConfig:
    folder, limits = DataFolder(options.folder), options.limits
    places = ClusterAddresses(
        own=host,
        control_socket=Address(str(folder.control_socket)),
        bulk_socket=Address(str(folder.bulk_socket)),
        shard_socket_of=partial(_socket_of, folder),
        bulk_port=options.ports.bulk_verbs,
        shard_port_first=options.ports.shards_from,
    )
    return BrokerConfig(
        places=places,
        datacenter=options.datacenter,
        authority=TlsFolder(folder.tls).trusted_pem,
        limits=BrokerLimits(
            calls_max=limits.table_calls_max,
            call_ms_max=limits.table_call_ms_max,
            write_jobs_max=limits.write_jobs_max,
            table_write_jobs_max=limits.table_write_jobs_max,
            write_life_ms=limits.bulk_job_life_ms,
            close_session_ms=limits.session_close_ms,
        ),
    )


def _login(options: NodeOptions) -> ClientAuthentication:
    if options.authenticator is Authenticator.NONE:
        return AllowAllAuthentication()
    known = {options.superuser: parse_password_hash(options.superuser_password_hash)}
    return PasswordAuthentication(known, SystemRng())


def visible_options(options: NodeOptions) -> Iterator[tuple[str, str, str]]:
    """For `system.config`; not what others could guess passwords by."""
    for name, value in flatten(options):
        if name != "superuser_password_hash":
            yield name, value, "options"


def store_limits(options: NodeOptions, open_files: int) -> StoreLimits:
    limits = options.limits
    return StoreLimits(
        log=CommitLogLimits(mode=options.commit_log, period_ms=limits.commit_log_period_ms),
        layers_open_max=layers_open_max(open_files),
        free_bytes_min=limits.free_disk_bytes_min,
    )


def replica_limits(options: NodeOptions) -> ReplicaLimits:
    """A shard that is asked to end gets through with it before its control kills it: what is not flushed by then would
    have to be replayed."""
    ask_ms = int(options.limits.stop_ms * CHILD_STOP_SHARE)
    return ReplicaLimits(
        adopted_layers_max=options.limits.adopted_layers_max,
        drain_ms=int(ask_ms * DRAIN_SHARE),
        stop_ms=int(ask_ms * FLUSH_SHARE),
    )


def rocks_limits(options: NodeOptions) -> RocksLimits:
    return RocksLimits(
        write_buffers_total_bytes=options.limits.shard_unflushed_bytes_max,
        cache_bytes=options.limits.shard_cache_bytes_max,
    )


if __name__ == "__main__":
    sys.exit(main())

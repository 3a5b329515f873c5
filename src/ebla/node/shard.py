"""The entry of a shard process: a shard on RocksDB, TCP and TLS, with a CQL server."""

import sys
import uuid
from functools import partial

from ebla.model.identity import ShardNumber, StoreId
from ebla.node.context import NodeContext
from ebla.node.cql_service import CqlService
from ebla.node.process import (
    Reloadable,
    child_context,
    child_environment,
    child_parser,
    run_child,
    run_process,
    run_until_stopped,
)
from ebla.node.shard_process import ShardDeps, ShardProcess
from ebla.options import NodeOptions
from ebla.runtime import file_lock
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.priorities import raise_serving_priority, shorten_thread_slice
from ebla.runtime.process_limits import layers_open_max
from ebla.runtime.tls import CqlServerTls, TlsFolder
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.store_limits import StoreLimits


def main() -> int:
    parser = child_parser("A data process of a node")
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--store", type=uuid.UUID, required=True)
    chosen = parser.parse_args()
    return run_child(chosen, partial(_run_shard, ShardNumber(chosen.number), StoreId(chosen.store)))


def _run_shard(number: ShardNumber, store: StoreId, options: NodeOptions, open_files: int) -> None:
    raise_serving_priority()
    shorten_thread_slice()
    node = child_context(options, f"shard-{number}")
    with file_lock.acquire(node.folder.shard_lock(number)):
        run_process(_run(node, number, store, open_files))


async def _run(node: NodeContext, number: ShardNumber, store: StoreId, open_files: int) -> None:
    disk = FileDisk()
    reloads: list[Reloadable] = []
    async with child_environment(node, disk, reloads) as environment:
        cql_tls = CqlServerTls(TlsFolder(node.folder.tls))
        reloads.append(cql_tls)
        deps = ShardDeps(
            engine=RocksEngine(disk, node.limits),
            store=store_limits(node.options, open_files),
            services=lambda context: (CqlService(context, node, cql_tls),),
        )
        await run_until_stopped(ShardProcess(environment, node, number, store, deps).run())


def store_limits(options: NodeOptions, open_files: int) -> StoreLimits:
    limits = options.limits
    return StoreLimits(
        mode=options.commit_log,
        period_ms=limits.commit_log_period_ms,
        layers_open_max=layers_open_max(open_files),
        free_bytes_min=limits.free_disk_bytes_min,
    )


if __name__ == "__main__":
    sys.exit(main())

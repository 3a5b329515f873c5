"""The pipeline process: Spark's driver, at low priority, and the jobs it runs. Control has it while it leads."""

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path

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
from ebla.pipeline.class_archive import default_archive_folder
from ebla.pipeline.pipeline_process import NAME, PipelineConfig, PipelineLimits, PipelineProcess
from ebla.pipeline.spark_engine import SparkEngine
from ebla.pipeline.spark_settings import LOOPBACK, SparkOptions
from ebla.ports.environment import Environment
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder, NodeIdentity
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.priorities import lower_session_priority
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.transfers.cluster_client import ClusterAddresses
from ebla.transfers.transfer_client import TransferCallLimits
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits

NICENESS = 10
"""Below the bulk process, which has to answer for what Spark's tasks ask of it."""
LOG_BYTES_MAX = 8 << 20


def main() -> int:
    return run_child(child_parser("The process of the leader that moves data on Spark").parse_args(), _run_pipeline)


def _run_pipeline(options: NodeOptions, _open_files: int) -> None:
    os.nice(NICENESS)
    identity = identity_of(options)
    folder = DataFolder(options.folder)
    with file_lock.acquire(folder.pipeline_lock):
        folder.pipeline.mkdir(mode=0o700, exist_ok=True)
        _keep_apart(folder.pipeline / "python.log")
        run_process(_run(options, identity, reporter(SystemClock(), NAME, options.log_format)))


def _keep_apart(log: Path) -> None:
    """What libraries write to standard output and error from here on goes to a file of its own, beside that of Spark's
    Java process. What this process has to say itself stays in the node's log."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.rename(log.with_suffix(".log.1"))
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


async def _run(options: NodeOptions, identity: NodeIdentity, report: EventReporter) -> None:
    folder = DataFolder(options.folder)
    on_signal(signal.SIGHUP, lambda: reload_tls((tls,), report))
    tls = NodeTls(TlsFolder(folder.tls))
    # Not before Spark is ready: it needs some ten seconds of a processor to start, which a busy machine would draw out
    # beyond its bound.
    stand_back = partial(lower_session_priority, NICENESS)
    engine = SparkEngine(_spark_options(options, folder), TlsFolder(folder.tls).trusted_pem(), stand_back)
    async with TcpTransport(tls, TransportLimits(), report) as transport:
        pipeline = PipelineProcess(
            Environment(clock=SystemClock(), rng=SystemRng(), disk=FileDisk(), transport=transport),
            PipelineConfig(
                introduction=Introduction(
                    host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process=NAME
                ),
                places=_places(options, identity, folder),
                wire=WireLimits(),
                report=report,
                pid=os.getpid(),
                limits=PipelineLimits(
                    heartbeat_ms=options.limits.child_heartbeat_ms,
                    silence_ms=options.limits.feed_silence_ms,
                    steps=TransferCallLimits(close_session_ms=options.limits.session_close_ms),
                ),
            ),
            engine,
        )
        await run_until_stopped(_together(engine, pipeline))


async def _together(engine: SparkEngine, pipeline: PipelineProcess) -> None:
    """Beats to control begin at once: Spark takes a while to start, and may not start at all."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.serve())
        tasks.create_task(pipeline.run())


def _places(options: NodeOptions, identity: NodeIdentity, folder: DataFolder) -> ClusterAddresses:
    return ClusterAddresses(
        own=identity.host,
        control_socket=Address(str(folder.control_socket)),
        bulk_socket=Address(str(folder.bulk_socket)),
        shard_socket_of=lambda number: Address(str(folder.shard_socket(number))),
        bulk_port=options.ports.bulk_verbs,
        shard_port_first=options.ports.shards_from,
    )


def _spark_options(options: NodeOptions, folder: DataFolder) -> SparkOptions:
    chosen = options.pipeline
    embedded = SparkOptions(folder=folder.pipeline, master=chosen.master).is_embedded
    return SparkOptions(
        folder=folder.pipeline.absolute(),
        master=chosen.master,
        java_home=chosen.java_home,
        driver_memory_mb=chosen.driver_memory_mb,
        user_interface=chosen.user_interface,
        event_log=chosen.event_log,
        task_bytes=chosen.tasks_bytes,
        driver_host=LOOPBACK if embedded else options.address,
        archive_folder=default_archive_folder(os.environ),
    )


if __name__ == "__main__":
    sys.exit(main())

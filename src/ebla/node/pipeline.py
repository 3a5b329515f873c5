"""The entry of the pipeline process: Spark's driver, at low priority, and the jobs it runs. Control runs it while this
node is the leader of group 0."""

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from ebla.node.context import NodeContext
from ebla.node.pipeline_process import NAME, PipelineProcess
from ebla.node.process import (
    child_context,
    child_environment,
    child_parser,
    reporter,
    run_child,
    run_process,
    run_until_stopped,
)
from ebla.options import NodeOptions
from ebla.pipeline.java import default_archive_folder
from ebla.pipeline.spark_engine import SparkEngine
from ebla.pipeline.spark_settings import LOOPBACK, SparkOptions
from ebla.runtime import file_lock
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.priorities import lower_session_priority
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.tls import TlsFolder

NICENESS = 10
"""Below the bulk process, which must answer the requests of Spark's tasks."""
LOG_BYTES_MAX = 8 << 20


def main() -> int:
    return run_child(child_parser("The process of the leader that moves data on Spark").parse_args(), _run_pipeline)


def _run_pipeline(options: NodeOptions, _open_files: int) -> None:
    os.nice(NICENESS)
    node = child_context(options, NAME)
    with file_lock.acquire(node.folder.pipeline_lock):
        node.folder.pipeline.mkdir(mode=0o700, exist_ok=True)
        _redirect_library_output(node.folder.pipeline / "python.log")
        # After the redirection: this process's own events stay in the node's log.
        run_process(_run(replace(node, report=reporter(SystemClock(), NAME, options.log_format))))


def _redirect_library_output(log: Path) -> None:
    """From here on, output that libraries write to stdout and stderr goes to a file beside the log of Spark's Java
    process."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.rename(log.with_suffix(".log.1"))
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


async def _run(node: NodeContext) -> None:
    # Only once Spark is ready: its start needs about ten seconds of CPU, and on a busy machine a low priority would
    # stretch that beyond its bound.
    lower_priority = partial(lower_session_priority, NICENESS)
    async with child_environment(node, FileDisk()) as environment:
        engine = SparkEngine(_spark_options(node), TlsFolder(node.folder.tls).trusted_pem(), lower_priority)
        await run_until_stopped(_run_both(engine, PipelineProcess(environment, node, engine)))


async def _run_both(engine: SparkEngine, pipeline: PipelineProcess) -> None:
    """Heartbeats to control begin at once: Spark takes a while to start, and may not start at all."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.serve())
        tasks.create_task(pipeline.run())


def _spark_options(node: NodeContext) -> SparkOptions:
    chosen, folder = node.options.pipeline, node.folder.pipeline
    embedded = SparkOptions(folder=folder, master=chosen.master).is_embedded
    return SparkOptions(
        folder=folder.absolute(),
        master=chosen.master,
        secret_file=Path(chosen.secret_file) if chosen.secret_file else None,
        authenticate=chosen.authenticate,
        java_home=chosen.java_home,
        driver_memory_mb=chosen.driver_memory_mb,
        user_interface=chosen.user_interface,
        event_log=chosen.event_log,
        task_bytes=chosen.tasks_bytes,
        driver_host=LOOPBACK if embedded else node.options.address,
        archive_folder=default_archive_folder(os.environ),
    )


if __name__ == "__main__":
    sys.exit(main())

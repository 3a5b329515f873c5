"""What the processes of a node have in common: signals, certificate reloads, the log, errors for the operator."""

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from ebla.model.errors import EblaError, leaf_errors
from ebla.node.context import NodeContext
from ebla.observe.event_reporter import EventReporter
from ebla.observe.events import EventLog, Sink
from ebla.observe.sinks import JsonLines, TextLines
from ebla.options import LogFormat, NodeOptions, OptionsError, load
from ebla.ports.clock import Clock
from ebla.ports.disk import Disk
from ebla.ports.environment import Environment
from ebla.runtime.data_folder import DataFolder, NodeIdentity
from ebla.runtime.death_signal import die_with_parent
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.process_limits import raise_open_files
from ebla.runtime.supervisor import PARENT_FLAG, PIPE_FLAG
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder

EXIT_OK = 0
EXIT_REFUSED = 1
EXIT_GAVE_UP = 3

WARNINGS = (
    "bulk.key_unreadable",
    "checkpoint.unreadable",
    "child.ended",
    "child.killed",
    "child.not_started",
    "cql.accept_failed",
    "cql.client_stalled",
    "cql.client_too_slow",
    "cql.connection_refused",
    "cql.frame_late",
    "cql.internal_error",
    "cql.request_failed",
    "compaction.failed",
    "control.must_restart",
    "join.rejected",
    "join.token_refused",
    "lease.damaged",
    "lease.not_saved",
    "lease.worker_failed",
    "liveness.peer_down",
    "node.excluded",
    "node.gave_up",
    "node.reason_not_kept",
    "raft.disk_full",
    "raft.snapshot_failed",
    "replica.not_dropped",
    "session.not_ended",
    "session.overdue",
    "settings.erase_waits",
    "shard.cut_off_requests",
    "shard.compaction_failed",
    "shard.not_confirmed",
    "shard.not_flushed",
    "shard.stopped_serving",
    "staging.not_swept",
    "staging.unreadable",
    "topology.not_prepared",
    "topology.unreadable",
    "transport.connection_refused",
    "transport.link_violated",
    "transport.tls_failed",
    "wire.link_ended",
    "wire.peer_unreachable",
    "wire.verb_broke",
)


class Reloadable(Protocol):
    def reload(self) -> None: ...


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--options", type=Path, required=True, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def child_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"{description}; started by its control")
    parser.add_argument(PARENT_FLAG, type=int, required=True)
    parser.add_argument(PIPE_FLAG, type=int, required=True)
    add_options(parser)
    return parser


def run_child(chosen: argparse.Namespace, work: Callable[[NodeOptions, int], None]) -> int:
    """Runs a child. `work` gets its options and the number of files it may open."""
    # By default SIGHUP from `ebla renew` would kill a process that is starting. Certificates are read after this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    die_with_parent(chosen.parent, chosen.parent_pipe)
    try:
        options = load(chosen.options, chosen.set)
        work(options, raise_open_files(options.limits.open_files_min))
    except EblaError as error:
        sys.stderr.write(f"ebla: {error}\n")
        return EXIT_REFUSED
    return EXIT_OK


def run_process(work: Coroutine[Any, Any, Any]) -> Any:
    # Imported modules stay. Without this, every full collection would traverse them and stop a serving process for
    # 16 ms, even on an idle machine.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except BaseExceptionGroup as group:
        # An expected error has a message for the operator. Any other is a defect and shows its traceback.
        errors = list(leaf_errors(group))
        if all(isinstance(error, EblaError) for error in errors):
            raise errors[0] from group
        raise


async def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs a child until it gets a signal to stop, or until its work fails."""
    stop = stop_on_signals()
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        await stop.wait()
        working.cancel()


def stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        on_signal(number, stop.set)
    return stop


def on_signal(number: signal.Signals, act: Callable[[], object]) -> None:
    asyncio.get_running_loop().add_signal_handler(number, act)


@asynccontextmanager
async def child_environment(
    node: NodeContext, disk: Disk, reloads: Sequence[Reloadable] = ()
) -> AsyncIterator[Environment]:
    """The real ports. SIGHUP reloads the certificates of the transport, and `reloads`, to which the caller may add."""
    # Before the certificates are read, or a change in between would be missed until the next one.
    on_signal(signal.SIGHUP, lambda: reload_tls((tls, *reloads), node.report))
    tls = NodeTls(TlsFolder(node.folder.tls))
    async with TcpTransport(tls, node.report) as transport:
        yield Environment(clock=SystemClock(), rng=SystemRng(), disk=disk, transport=transport)


def reload_tls(contexts: Sequence[Reloadable], report: EventReporter) -> bool:
    try:
        for each in contexts:
            each.reload()
    except EblaError as error:
        report("tls.not_reloaded", {"cause": str(error)})
        return False
    report("tls.reloaded", {})
    return True


def child_context(options: NodeOptions, process: str) -> NodeContext:
    folder = DataFolder(options.folder)
    identity = folder.read_identity()
    if identity is None:
        raise OptionsError(f"{folder.path} holds no node")
    return node_context(options, identity, process)


def node_context(options: NodeOptions, identity: NodeIdentity, process: str) -> NodeContext:
    return NodeContext(
        options=options,
        host=identity.host,
        cluster=identity.cluster,
        cluster_name=identity.cluster_name,
        report=reporter(SystemClock(), process, options.log_format),
        pid=os.getpid(),
    )


def reporter(clock: Clock, process: str, log_format: LogFormat) -> EventReporter:
    return EventLog(clock, process, _sink(log_format), WARNINGS)


def _sink(log_format: LogFormat) -> Sink:
    match log_format:
        case LogFormat.PEOPLE:
            at_terminal = sys.stderr.isatty()
            return TextLines(sys.stderr, colour=at_terminal, dated=not at_terminal)
        case LogFormat.JSON:
            return JsonLines(sys.stderr)

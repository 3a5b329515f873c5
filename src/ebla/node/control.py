"""The entry of a node: its control process, the checks before it starts, its children, and how they end."""

import asyncio
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from ebla.control.pipeline_placement import PIPELINE
from ebla.model.errors import EblaError, Refused
from ebla.node.context import NodeContext
from ebla.node.control_process import NAME, ControlProcess
from ebla.node.group0_config import group0_config
from ebla.node.process import (
    EXIT_GAVE_UP,
    EXIT_OK,
    EXIT_REFUSED,
    node_context,
    on_signal,
    reload_tls,
    run_process,
    stop_on_signals,
)
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeOptions
from ebla.ports.environment import Environment
from ebla.runtime import file_lock
from ebla.runtime.authority_handover import JOIN_LIMITS, AuthorityService, JoinTransport
from ebla.runtime.bootstrap import create_cluster, join_by_token
from ebla.runtime.data_folder import DataFolder, NodeIdentity, write_durably
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.preflight import check_addresses, check_credentials, check_folder, wait_for_predecessors
from ebla.runtime.priorities import raise_serving_priority
from ebla.runtime.re_execution import LoopWatchdog, ReExecution, control_restarts
from ebla.runtime.supervisor import ChildCommand, Supervisor
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.wire.join_token import parse_join_token
from ebla.wire.server import Server

FIRST_STATE_WAIT_S = 10.0
"""How long the first start of a child waits for this node's first state of group 0. Without that state a child has
nothing to do, and its start would take CPU from a node that is loading the state of a large cluster."""


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The arguments of the node's start. Its children get the same options."""

    options_path: Path
    overrides: tuple[str, ...]
    token: str | None


def run_control(options: NodeOptions, start: StartArguments) -> int:
    """Every check that can refuse the start runs before the first child starts and before a peer is answered."""
    folder = DataFolder(options.folder)
    check_credentials(options, start.options_path)
    if check_folder(options) is None:
        _check_first_start(options, start.token)
        folder.lay_out()
    with file_lock.acquire(folder.control_lock):
        # Under the lock, or two first starts at once in one folder would each create a host id.
        identity = folder.read_identity() or _first_start(options, start.token)
        wait_for_predecessors(folder, options.limits.lock_wait_ms)
        check_addresses(options)
        folder.last_stop.unlink(missing_ok=True)
        node = node_context(options, identity, NAME)
        supervisor = Supervisor(child_commands(options, start), options.limits, SystemClock(), node.report)
        raise_serving_priority()  # after the supervisor, which gives its children the priority from before
        try:
            stopped: tuple[str | None, int] = run_process(_run_control(node, supervisor))
        except EblaError as error:
            _store_reason(folder, str(error), node.report)
            raise
        reason, status = stopped
        _store_reason(folder, reason or "asked to stop", node.report)
    if reason is not None:
        sys.stderr.write(f"ebla: the node stopped: {reason}\n")
    return status


def child_commands(options: NodeOptions, start: StartArguments) -> list[ChildCommand]:
    again = (str(start.options_path), *(flag for override in start.overrides for flag in ("--set", override)))
    shard = (sys.executable, "-m", "ebla.node.shard", "--options", *again)
    bulk = (sys.executable, "-m", "ebla.node.bulk", "--options", *again)
    shards = [ChildCommand(f"shard-{number}", (*shard, "--number", str(number))) for number in range(options.shards)]
    children = [*shards, ChildCommand("bulk", bulk)]
    if options.pipeline.enabled:
        pipeline = (sys.executable, "-m", "ebla.node.pipeline", "--options", *again)
        children.append(ChildCommand(PIPELINE, pipeline, optional=True))
    return children


def _store_reason(folder: DataFolder, reason: str, report: EventReporter) -> None:
    """For `ebla status`. A disk that is full must not turn a clean stop into a crash."""
    try:
        write_durably(folder.last_stop, f"{reason}\n".encode())
    except OSError as error:
        report("node.reason_not_kept", {"cause": str(error)})


def _check_first_start(options: NodeOptions, token: str | None) -> None:
    if token is not None:
        parse_join_token(token)
    elif options.peer_addresses:
        raise Refused(
            f"{options.folder} has no identity yet, and its options name peers: it must join their cluster",
            advice="make a token there (`ebla token`) and start with --join TOKEN; a node without `peers` creates a "
            "cluster of its own",
        )


def _first_start(options: NodeOptions, token: str | None) -> NodeIdentity:
    if token is None:
        return create_cluster(options, SystemClock(), SystemRng())
    return join_by_token(options, parse_join_token(token), SystemClock(), SystemRng())


async def _run_control(node: NodeContext, supervisor: Supervisor) -> tuple[str | None, int]:
    """Returns why the node stopped without a request, None if it was requested; and its exit status."""
    options, clock = node.options, SystemClock()
    tls_folder = TlsFolder(node.folder.tls)
    stop = stop_on_signals()
    # Before the certificates are read, or a change in between would be missed until the next one.
    on_signal(signal.SIGHUP, lambda: _reload(tls, node.report, supervisor))
    tls = NodeTls(tls_folder)
    async with TcpTransport(tls, node.report) as transport, asyncio.TaskGroup() as tasks:
        join_server = Server(tasks, node.introduction(NAME), node.report, JOIN_LIMITS)
        AuthorityService(tls_folder, node.cluster, clock, join_server)
        transport_with_join = JoinTransport(transport, options.control_address, join_server.accept)
        control = ControlProcess(
            Environment(clock=clock, rng=SystemRng(), disk=FileDisk(), transport=transport_with_join),
            node,
            group0_config(node),
            supervisor,
            stop,
        )
        control.restarts = control_restarts()
        supervisor.before_spawn = control.before_spawn
        again = ReExecution(
            clock.boot_ms,
            supervisor.kill_all,
            lambda reason: _store_reason(node.folder, reason, node.report),
            supervisor.niceness,
        )

        async def restart(reason: str) -> None:
            await _save_leases(control, node.report)
            if not stop.is_set():  # else it ends in order; the next program would know nothing of the stop
                again.restart(reason, EXIT_GAVE_UP)

        control.end_process = lambda reason: tasks.create_task(restart(reason))
        watchdog = LoopWatchdog(
            lambda: control.turns.beats, lambda: control.lease_period_ms, lambda why: again.restart(why, EXIT_GAVE_UP)
        )
        serving = tasks.create_task(control.run())
        try:
            await control.ready.wait()
            watchdog.start()
            node.report("node.started", {"host": str(node.host), "address": str(options.control_address)})
            if options.cql_exposure:
                node.report("cql.exposed", {"address": options.address, "cause": options.cql_exposure})
            stopping = tasks.create_task(stop.wait())
            first = tasks.create_task(control.wait_first_state(FIRST_STATE_WAIT_S))
            await asyncio.wait([first, stopping], return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            children = tasks.create_task(supervisor.run())
            await asyncio.wait([children, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:  # a part that fails ends the others too, and their end must be bounded in the same way
            watchdog.stop()
            _kill_after(options.limits.stop_ms)
        stop.set()
        supervisor.stop()
        await asyncio.wait([children])
        serving.cancel()
        join_server.close("the node stops")
    reason = control.gave_up or supervisor.gave_up
    if reason is not None:
        node.report("node.gave_up", {"reason": reason})
    node.report("node.stopped", {})
    if reason is None:
        return None, EXIT_OK
    was_refused = control.was_refused or (control.gave_up is None and supervisor.refusal is not None)
    return reason, EXIT_REFUSED if was_refused else EXIT_GAVE_UP


async def _save_leases(control: ControlProcess, report: EventReporter) -> None:
    try:
        if control.leadership is not None:
            await control.leadership.save_for_stop()
    except Exception as error:  # for any error, control must be started again
        report("lease.not_saved", {"cause": repr(error)})


def _reload(tls: NodeTls, report: EventReporter, supervisor: Supervisor) -> None:
    if reload_tls((tls,), report):
        supervisor.forward_signal(signal.SIGHUP)


def _kill_after(stop_ms: int) -> None:
    """The node ends in time even if something hangs. Its children die with it."""
    killer = threading.Timer(stop_ms / 1000, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()

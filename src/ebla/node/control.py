"""The control process of a node, and its children: what is checked before they start, and how they end."""

import asyncio
import os
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ebla.control.control_process import ControlConfig, ControlProcess
from ebla.control.group0.node import Group0Config
from ebla.control.liveness.heartbeats import LivenessLimits
from ebla.group0.members import Member, MemberRole
from ebla.model.errors import Refused
from ebla.model.identity import Address
from ebla.node.process import (
    CHILD_STOP_SHARE,
    EXIT_GAVE_UP,
    EXIT_OK,
    on_signal,
    reload_tls,
    reporter,
    run_process,
    stop_on_signals,
)
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeOptions
from ebla.ports.environment import Environment
from ebla.runtime import file_lock
from ebla.runtime.authority_handover import AuthorityService
from ebla.runtime.bootstrap import create_cluster, join_by_token
from ebla.runtime.child_policy import ChildLimits
from ebla.runtime.data_folder import DataFolder, NodeIdentity, write_durably
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.join_listener import JOIN_LIMITS, JoinTransport
from ebla.runtime.preflight import check_addresses, check_folder, wait_for_predecessors
from ebla.runtime.supervisor import ChildCommand, Supervisor
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.version import release
from ebla.wire.frames import Introduction
from ebla.wire.join_token import parse_join_token
from ebla.wire.limits import WireLimits
from ebla.wire.server import Server

PIPELINE = "pipeline"

FIRST_STATE_WAIT_S = 10.0
"""How long the first start of a child waits for this node's first state of group 0. Without one it has nothing to do,
and its start would take the processor from a node that is just taking in the state of a large cluster."""


@dataclass(frozen=True, slots=True)
class StartArguments:
    """How the node was told to start; its children are told the same."""

    options_path: Path
    overrides: tuple[str, ...]
    token: str | None


def run_control(options: NodeOptions, start: StartArguments) -> int:
    """Everything that can be refused is refused before the first child starts or a peer is answered."""
    folder = DataFolder(options.folder)
    if check_folder(options) is None:
        _check_first_start(options, start.token)
        folder.lay_out()
    with file_lock.acquire(folder.control_lock):
        # Under the lock, or two first starts at once in one folder would each make a host of their own.
        identity = folder.read_identity() or _first_start(options, start.token)
        wait_for_predecessors(folder, options.limits.lock_wait_ms)
        check_addresses(options)
        folder.last_stop.unlink(missing_ok=True)
        clock = SystemClock()
        report = reporter(clock, "control", options.log_format)
        supervisor = Supervisor(child_commands(options, start), _child_limits(options), clock, report)
        reason = run_process(_run_control(options, identity, supervisor, report))
        _keep_reason(folder, reason or "asked to stop", report)
    if reason is None:
        return EXIT_OK
    sys.stderr.write(f"ebla: the node stopped: {reason}\n")
    return EXIT_GAVE_UP


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


def _keep_reason(folder: DataFolder, reason: str, report: EventReporter) -> None:
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
            advice="make a token there (`ebla token`) and start with --join TOKEN; a node without `peers` founds a "
            "cluster of its own",
        )


def _first_start(options: NodeOptions, token: str | None) -> NodeIdentity:
    if token is None:
        return create_cluster(options, SystemClock(), SystemRng())
    return join_by_token(options, parse_join_token(token), SystemClock(), SystemRng())


def _child_limits(options: NodeOptions) -> ChildLimits:
    limits = options.limits
    return ChildLimits(
        start_ms=limits.child_start_ms,
        silence_ms=limits.child_silence_ms,
        exits_max=limits.child_exits_max,
        exits_window_ms=limits.child_exits_window_ms,
        restart_pause_ms=limits.child_restart_pause_ms,
        ask_ms=int(limits.stop_ms * CHILD_STOP_SHARE),
    )


async def _run_control(
    options: NodeOptions, identity: NodeIdentity, supervisor: Supervisor, report: EventReporter
) -> str | None:
    """Returns why the node stopped by itself; None where it was asked to."""
    folder, clock = DataFolder(options.folder), SystemClock()
    stop = stop_on_signals()
    # Before the certificates are read: those that change in between would else be missed until the next change.
    on_signal(signal.SIGHUP, lambda: _reload(tls, report, supervisor))
    tls = NodeTls(TlsFolder(folder.tls))
    introduction = Introduction(host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name)
    async with TcpTransport(tls, TransportLimits(), report) as transport, asyncio.TaskGroup() as tasks:
        desk = Server(tasks, introduction, JOIN_LIMITS, report)
        AuthorityService(TlsFolder(folder.tls), identity.cluster, clock, desk)
        doors = JoinTransport(transport, options.control_address, desk.accept)
        control = ControlProcess(
            Environment(clock=clock, rng=SystemRng(), disk=FileDisk(), transport=doors),
            ControlConfig(
                introduction=introduction,
                address=options.control_address,
                local_address=Address(str(folder.control_socket)),
                group0=_group0_setup(options, identity),
                liveness=LivenessLimits(options.limits.peer_heartbeat_ms, options.limits.peer_silence_ms),
                wire=WireLimits(),
                report=report,
                pid=os.getpid(),
                release=release(),
                shard_count=options.shards,
                bulk_job_life_ms=options.limits.bulk_job_life_ms,
                want_pipeline=partial(supervisor.want, PIPELINE) if options.pipeline.enabled else None,
            ),
            supervisor,
            stop,
        )
        serving = tasks.create_task(control.run())
        try:
            await control.ready.wait()
            report("node.started", {"host": str(identity.host), "address": str(options.control_address)})
            stopping = tasks.create_task(stop.wait())
            first = tasks.create_task(control.topology.wait_change(None, FIRST_STATE_WAIT_S))
            await asyncio.wait([first, stopping], return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            children = tasks.create_task(supervisor.run())
            await asyncio.wait([children, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:  # a part that breaks ends the others as well, and their end must be bounded just so
            _end_within(options.limits.stop_ms)
        stop.set()
        supervisor.stop()
        await asyncio.wait([children])
        serving.cancel()
        desk.close("the node stops")
    reason = control.gave_up or supervisor.gave_up
    if reason is not None:
        report("node.gave_up", {"reason": reason})
    report("node.stopped", {})
    return reason


def _group0_setup(options: NodeOptions, identity: NodeIdentity) -> Group0Config:
    own = Member(
        host=identity.host,
        role=MemberRole.LEARNER,
        address=options.control_address,
        datacenter=options.datacenter,
        rack=options.rack,
        release=release(),
    )
    return Group0Config(
        member=own,
        cluster=identity.cluster,
        cluster_name=identity.cluster_name,
        contacts=options.peer_addresses,
        folder=str(DataFolder(options.folder).group0.absolute()),
        tick_ms=options.limits.raft_tick_ms,
        election_ticks=max(2, options.limits.raft_election_ms // options.limits.raft_tick_ms),
    )


def _reload(tls: NodeTls, report: EventReporter, supervisor: Supervisor) -> None:
    if reload_tls((tls,), report):
        supervisor.forward_signal(signal.SIGHUP)


def _end_within(stop_ms: int) -> None:
    """Whatever hangs, the node is gone in time: killed, it takes its children along."""
    killer = threading.Timer(stop_ms / 1000, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()

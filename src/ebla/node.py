"""The composition root: the processes of a node, put together from their parts and real implementations.

`python -m ebla.node control --options FILE` is a node; it starts its shards as `python -m ebla.node shard …` itself.
"""

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebla.control.control_process import ControlProcess, ControlSetup
from ebla.control.group0_server import Group0Setup
from ebla.control.liveness import LivenessLimits
from ebla.group0.members import Member, Role
from ebla.model.error_groups import leaves
from ebla.model.errors import EblaError, Refused
from ebla.model.identity import Address
from ebla.observe.events import Severity, Sink
from ebla.observe.observer import Observer
from ebla.observe.sinks import ForPeople, JsonLines
from ebla.options import LogFormat, NodeOptions, OptionsError, load
from ebla.ports.surroundings import Surroundings
from ebla.replica.shard_process import ShardProcess, ShardSetup
from ebla.runtime import file_lock
from ebla.runtime.child_policy import ChildLimits
from ebla.runtime.data_folder import DataFolder, Identity, write_durably
from ebla.runtime.death_signal import die_with_parent
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.first_start import found_cluster, join_by_token
from ebla.runtime.hand_over import AuthorityDesk
from ebla.runtime.join_door import DESK_LIMITS, WithJoinDoor
from ebla.runtime.preflight import check_addresses, check_folder, wait_for_predecessors
from ebla.runtime.process_limits import raise_open_files
from ebla.runtime.supervise import PARENT_FLAG, PIPE_FLAG, ChildCommand, Supervisor
from ebla.runtime.system_chance import SystemChance
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.version import release
from ebla.wire.frames import Introduction
from ebla.wire.join_token import parse_join_token
from ebla.wire.limits import WireLimits
from ebla.wire.report import Report
from ebla.wire.server import Server

EXIT_OK = 0
EXIT_REFUSED = 1
EXIT_GAVE_UP = 3
ASK_SHARE = 0.6
"""Of the time for a stop, what a child has to end by itself; the rest is for killing, reaping and closing."""

WARNINGS = (
    "child.ended",
    "child.killed",
    "child.not_started",
    "join.token_refused",
    "liveness.peer_down",
    "node.gave_up",
    "shard.stopped_serving",
    "transport.connection_refused",
    "transport.link_violated",
    "transport.tls_failed",
    "wire.link_ended",
    "wire.peer_unreachable",
    "wire.verb_broke",
)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.role == "shard":
            die_with_parent(chosen.parent, chosen.parent_pipe)
        options = load(chosen.options, chosen.set)
        raise_open_files(options.limits.open_files_min)
        if chosen.role == "shard":
            return _shard(options, chosen.number)
        return _control(options, chosen)
    except EblaError as error:
        sys.stderr.write(f"ebla: {error}\n")
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ebla.node", description="Run one process of a node.")
    roles = parser.add_subparsers(dest="role", required=True)
    shard = roles.add_parser("shard", help="a data process; started by its control")
    shard.add_argument("--number", type=int, required=True)
    shard.add_argument(PARENT_FLAG, type=int, required=True)
    shard.add_argument(PIPE_FLAG, type=int, required=True)
    control = roles.add_parser("control", help="a node: control and the processes it starts")
    control.add_argument("--join", metavar="TOKEN", help="at its first start: be handed the cluster's authority")
    for role in (control, shard):
        role.add_argument("--options", type=Path, required=True, metavar="FILE")
        role.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser


# ---- control


def _control(options: NodeOptions, chosen: argparse.Namespace) -> int:
    """Everything that can be refused is refused before the first child starts or a peer is answered."""
    folder = DataFolder(options.folder)
    if check_folder(options) is None:
        _check_first_start(options, chosen.join)
        folder.lay_out()
    with file_lock.acquire(folder.control_lock):
        # Under the lock, or two first starts at once in one folder would each make a host of their own.
        identity = folder.read_identity() or _first_start(options, chosen.join)
        wait_for_predecessors(folder, options.limits.lock_wait_ms)
        check_addresses(options)
        folder.last_stop.unlink(missing_ok=True)
        clock = SystemClock()
        report = _reporter(clock, "control", options.log_format)
        supervisor = Supervisor(_shard_commands(options, chosen), _child_limits(options), clock, report)
        reason = _run(_run_control(options, identity, supervisor, report))
        _keep_reason(folder, reason or "asked to stop", report)
    if reason is None:
        return EXIT_OK
    sys.stderr.write(f"ebla: the node stopped: {reason}\n")
    return EXIT_GAVE_UP


def _shard_commands(options: NodeOptions, chosen: argparse.Namespace) -> list[ChildCommand]:
    again = ["--options", str(chosen.options), *(flag for override in chosen.set for flag in ("--set", override))]
    python = (sys.executable, "-m", "ebla.node", "shard", *again)
    return [ChildCommand(f"shard-{number}", (*python, "--number", str(number))) for number in range(options.shards)]


def _keep_reason(folder: DataFolder, reason: str, report: Report) -> None:
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


def _first_start(options: NodeOptions, token: str | None) -> Identity:
    if token is None:
        return found_cluster(options, SystemClock(), SystemChance())
    return join_by_token(options, parse_join_token(token), SystemClock(), SystemChance())


def _child_limits(options: NodeOptions) -> ChildLimits:
    limits = options.limits
    return ChildLimits(
        start_ms=limits.child_start_ms,
        silence_ms=limits.child_silence_ms,
        exits_max=limits.child_exits_max,
        exits_window_ms=limits.child_exits_window_ms,
        restart_pause_ms=limits.child_restart_pause_ms,
        ask_ms=int(limits.stop_ms * ASK_SHARE),
    )


async def _run_control(options: NodeOptions, identity: Identity, supervisor: Supervisor, report: Report) -> str | None:
    """Returns why the node stopped by itself; None where it was asked to."""
    folder, clock = DataFolder(options.folder), SystemClock()
    stop = _stop_on_signals()
    # Before the certificates are read: those that change in between would else be missed until the next change.
    _on_signal(signal.SIGHUP, lambda: _reload(tls, report, supervisor))
    tls = NodeTls(TlsFolder(folder.tls))
    introduction = Introduction(identity.host, identity.cluster, identity.cluster_name)
    async with TcpTransport(tls, TransportLimits(), report) as transport, asyncio.TaskGroup() as tasks:
        desk = Server(tasks, introduction, DESK_LIMITS, report)
        AuthorityDesk(TlsFolder(folder.tls), identity.cluster, clock, desk)
        doors = WithJoinDoor(transport, options.control_address, desk.accept)
        control = ControlProcess(
            Surroundings(clock, SystemChance(), FileDisk(), doors),
            ControlSetup(
                introduction=introduction,
                address=options.control_address,
                local_address=Address(str(folder.control_socket)),
                group0=_group0_setup(options, identity),
                liveness=LivenessLimits(options.limits.peer_heartbeat_ms, options.limits.peer_silence_ms),
                wire=WireLimits(),
                report=report,
                pid=os.getpid(),
                release=release(),
            ),
            supervisor,
            stop,
        )
        serving = tasks.create_task(control.run())
        try:
            await control.ready.wait()
            report("node.started", {"host": str(identity.host), "address": str(options.control_address)})
            children = tasks.create_task(supervisor.run())
            stopping = tasks.create_task(stop.wait())
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


def _group0_setup(options: NodeOptions, identity: Identity) -> Group0Setup:
    own = Member(
        identity.host,
        Role.LEARNER,
        options.control_address,
        options.datacenter,
        options.rack,
        release=release(),
    )
    return Group0Setup(
        own,
        identity.cluster,
        identity.cluster_name,
        options.peer_addresses,
        str(DataFolder(options.folder).group0.absolute()),
        tick_ms=options.limits.raft_tick_ms,
        election_ticks=max(2, options.limits.raft_election_ms // options.limits.raft_tick_ms),
    )


def _reload(tls: NodeTls, report: Report, supervisor: Supervisor | None) -> None:
    try:
        tls.reload()
    except EblaError as error:
        report("tls.not_reloaded", {"cause": str(error)})
        return
    report("tls.reloaded", {})
    if supervisor is not None:
        supervisor.pass_on(signal.SIGHUP)


def _end_within(stop_ms: int) -> None:
    """Whatever hangs, the node is gone in time: killed, it takes its children along."""
    killer = threading.Timer(stop_ms / 1000, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()


# ---- shards


def _shard(options: NodeOptions, number: int) -> int:
    folder, name = DataFolder(options.folder), f"shard-{number}"
    identity = folder.read_identity()
    if identity is None:
        raise OptionsError(f"{folder.path} holds no node")
    with file_lock.acquire(folder.shard_lock(number)):
        _run(_run_shard(options, identity, number, _reporter(SystemClock(), name, options.log_format)))
    return EXIT_OK


async def _run_shard(options: NodeOptions, identity: Identity, number: int, report: Report) -> None:
    folder = DataFolder(options.folder)
    stop = _stop_on_signals()
    _on_signal(signal.SIGHUP, lambda: _reload(tls, report, None))
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
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(shard.run())
            await stop.wait()
            serving.cancel()


# ---- both


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except BaseExceptionGroup as group:
        # An error that was foreseen has words for the operator; any other is a defect and shows its trace.
        errors = list(leaves(group))
        if all(isinstance(error, EblaError) for error in errors):
            raise errors[0] from group
        raise


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, stop.set)
    return stop


def _on_signal(number: signal.Signals, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(number, act)


def _reporter(clock: SystemClock, process: str, log_format: LogFormat) -> Report:
    observer = Observer(clock, [_sink(log_format)])

    def report(event: str, details: Mapping[str, object]) -> None:
        severity = Severity.WARNING if event in WARNINGS else Severity.NOTE
        observer.emit(event, process, severity=severity, **details)

    return report


def _sink(log_format: LogFormat) -> Sink:
    match log_format:
        case LogFormat.PEOPLE:
            at_terminal = sys.stderr.isatty()
            return ForPeople(sys.stderr, colour=at_terminal, dated=not at_terminal)
        case LogFormat.JSON:
            return JsonLines(sys.stderr)


if __name__ == "__main__":
    # By default it would end a process that `ebla renew` meets while it starts. Certificates are read later than this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())

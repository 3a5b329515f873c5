"""Starts and stops a cluster on this machine, and shows it meanwhile."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from ebla.cli.cluster.local_cluster import LocalNode, end, has_left, last_stop, left_text, log_tail, start
from ebla.cli.cluster.node_calls import fetch_cluster_view, request_stop, run_async
from ebla.cli.cluster.reset_node import cannot_join_as_it_is, reset_folder
from ebla.cli.cluster.status_table import status_fingerprint, status_lines
from ebla.client.cluster_view import ClusterView
from ebla.model.errors import EblaError, Unavailable
from ebla.runtime import file_lock

START_S = 60.0
POLL_S = 0.1
CONNECT_S = 1.0
FOLLOW_S = 1.0
ASK_S = 1.0
"""A live node accepts the request at once; after this, a node gets a signal."""
STOP_SLACK_S = 1.5
QUIET_S = 2.0
"""A stop that takes longer prints what it waits for."""
KILL_S = 3.0

PrintLine = Callable[[str], None]
FindNodes = Callable[[], Sequence[LocalNode]]


@dataclass(slots=True)
class StartedCluster:
    """The nodes, and the processes of those that this process started."""

    nodes: Sequence[LocalNode]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    is_stop_requested: bool = False
    """By Ctrl-C, SIGTERM or the terminal's end."""

    def catch_signals(self) -> None:
        """By default these signals would end this process and leave the nodes running. A handler that raises would not
        do: the event loop may drop its exception, and one that comes while a node is started loses its process."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._request_stop)

    def _request_stop(self, *_: object) -> None:
        self.is_stop_requested = True

    async def wait_stop_requested(self) -> None:
        while not self.is_stop_requested:  # noqa: ASYNC110  # set by a signal handler, which may not wake the loop
            await asyncio.sleep(POLL_S)

    def reap(self) -> None:
        """A child that ended is a zombie until its status is read."""
        for process in self.processes.values():
            process.poll()


def bring_up(nodes: Sequence[LocalNode], print_line: PrintLine) -> StartedCluster:
    """Starts the nodes that do not run. Returns once each one runs, sees the others and has its child processes, else
    stops those that it started. A node that still joins after this time goes on."""
    started = StartedCluster(nodes)
    started.catch_signals()
    reset: set[str] = set()  # by name; at most once each
    try:
        for node in nodes:
            if node.running_pid() is None:
                started.processes[node.name] = start(node)
        while (ended := run_async(_wait_all_up(started, print_line))) is not None:
            _reset_if_useless(started, ended, reset, print_line)
            if ended in started.nodes:
                started.processes[ended.name] = start(ended)
    except BaseException:
        started.nodes = [node for node in nodes if node.name in started.processes]
        take_down(started, "the start failed", print_line)
        raise
    return started


def _reset_if_useless(started: StartedCluster, node: LocalNode, reset: set[str], print_line: PrintLine) -> None:
    """Resets a node that can never join as it is: an earlier `ebla up` was killed after it had asked to join, and a new
    process may not continue that. Raises if it ended for another reason."""
    process = started.processes.get(node.name)
    is_gone = run_async(_ended_within(node, started, KILL_S))
    if is_gone and node.name not in reset and cannot_join_as_it_is(node):
        done = reset_folder(node)
        print_line(f"{node.name} was never in the ring and cannot join as host {done.old.host}: reset ({done.why})")
        reset.add(node.name)
    elif is_gone and run_async(has_left(node)):
        print_line(f"{node.name} {left_text(node)}")  # it has learned it by this start
        started.nodes = [one for one in started.nodes if one != node]
        started.processes.pop(node.name, None)
    elif process is not None:
        reason = last_stop(node) or "it gave no reason"
        raise Unavailable(
            f"{node.name} ended with status {process.poll()} while starting: {reason}; its log ends with\n"
            f"{log_tail(node)}"
        )


def is_up(nodes: Sequence[LocalNode]) -> bool:
    """Whether all of them run, see each other and serve."""
    return all(node.running_pid() is not None for node in nodes) and run_async(fetch_cluster_view(nodes)).all_up


def follow(started: StartedCluster, console: Console, find: FindNodes) -> None:
    """Shows the cluster until Ctrl-C (or SIGTERM, or the terminal's end). `find` lists the nodes again: `ebla add-node`
    may add some meanwhile, which are shown and stopped like the others."""
    run_async(_follow(started, console, find))


def take_down(started: StartedCluster, reason: str, print_line: PrintLine) -> list[LocalNode]:
    """Stops all running nodes and waits until their locks are free. Returns the nodes that ran. Each one takes at most
    its `stop_ms` plus the seconds above. Prints what it waits for."""
    running = [node for node in started.nodes if not node.is_gone() or _unfinished(started, node)]
    run_async(_stop_all(running, started, reason, print_line))
    return running


def _unfinished(started: StartedCluster, node: LocalNode) -> bool:
    """Whether its process was started and has not ended; it may not hold its lock yet."""
    process = started.processes.get(node.name)
    return process is not None and process.poll() is None


# ---- up


async def _wait_all_up(started: StartedCluster, print_line: PrintLine) -> LocalNode | None:
    """None: all are up; else the first node that has ended. Excluded nodes serve nobody until they are recovered."""
    deadline = time.monotonic() + START_S
    while True:
        for node in started.nodes:
            process = started.processes.get(node.name)
            if node.running_pid() is None if process is None else process.poll() is not None:
                return node
        if started.is_stop_requested:
            raise KeyboardInterrupt
        view = await fetch_cluster_view(started.nodes)
        excluded, joining = ({one.name for one in found} for found in (view.excluded, view.joining))
        serving = [node for node in started.nodes if node.name not in excluded | joining]
        is_up = view.members_up and all([await _accepts_cql_clients(node) for node in serving])
        if is_up and not joining:
            return None
        if time.monotonic() >= deadline:
            if is_up:
                print_line(f"{', '.join(sorted(joining))} still joins, and goes on: see `ebla topology`")
                return None
            lines = "\n".join(f"    {line.plain}" for line in status_lines(view, verbose=True))
            raise Unavailable(f"not all nodes were up within {START_S:.0f} s:\n{lines}")
        await asyncio.sleep(POLL_S)


async def _accepts_cql_clients(node: LocalNode) -> bool:
    """Shards listen for CQL clients shortly after they serve. Users connect as soon as the cluster is reported up."""
    everyone, _ = node.options.cql_addresses
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(everyone.host, everyone.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _follow(started: StartedCluster, console: Console, find: FindNodes) -> None:
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        last_printed: tuple[object, ...] = ()
        while True:
            started.reap()
            with suppress(EblaError):  # an options file that somebody is editing
                started.nodes = find()
            view = await _unless_stopped(started, fetch_cluster_view(started.nodes))
            if view is not None and live is not None:
                live.update(Group(*status_lines(view, console.width)), refresh=True)
            elif view is not None and status_fingerprint(view) != last_printed:
                # Only changes, so that a log stays readable.
                last_printed = status_fingerprint(view)
                for line in status_lines(view):
                    console.print(line, soft_wrap=True, highlight=False)
            try:
                async with asyncio.timeout(FOLLOW_S):
                    return await started.wait_stop_requested()
            except TimeoutError:
                continue


async def _unless_stopped(started: StartedCluster, fetch: Coroutine[Any, Any, ClusterView]) -> ClusterView | None:
    """None if the stop comes first: nodes that do not answer would delay the stop for seconds."""
    async with asyncio.TaskGroup() as tasks:
        fetching, stopped = tasks.create_task(fetch), tasks.create_task(started.wait_stop_requested())
        await asyncio.wait([fetching, stopped], return_when=asyncio.FIRST_COMPLETED)
        fetching.cancel()
        stopped.cancel()
    return None if fetching.cancelled() else fetching.result()


# ---- down


async def _stop_all(nodes: Sequence[LocalNode], started: StartedCluster, reason: str, print_line: PrintLine) -> None:
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(_stop_one(node, started, reason, print_line))


async def _stop_one(node: LocalNode, started: StartedCluster, reason: str, print_line: PrintLine) -> None:
    """Requests a stop over the socket, else by signal; kills the node if it does not stop in time."""
    bound_s = node.options.limits.stop_ms / 1000 + STOP_SLACK_S
    try:
        async with asyncio.timeout(ASK_S):
            await request_stop(node, reason)
    except (EblaError, TimeoutError):
        end(node, signal.SIGTERM)
        if (process := started.processes.get(node.name)) is not None:
            process.terminate()
    quiet_s = min(QUIET_S, bound_s / 2)
    if await _ended_within(node, started, quiet_s):
        return
    print_line(f"waiting for {node.name}: {_remaining_text(node)}; it is killed in {bound_s - quiet_s:.1f} s")
    if await _ended_within(node, started, bound_s - quiet_s):
        return
    print_line(f"{node.name} did not stop within {bound_s:.1f} s: killed")
    end(node, signal.SIGKILL)
    if not await _ended_within(node, started, KILL_S):
        raise Unavailable(
            f"{node.name} is still there after it was killed: {_remaining_text(node)}",
            advice="look at the process with ps; it may hang in the kernel",
        )


def _remaining_text(node: LocalNode) -> str:
    if (pid := node.running_pid()) is not None:
        return f"process {pid} has not ended"
    held = file_lock.find_held_lock(node.folder.run)
    return "its process has not ended" if held is None else held.message


async def _ended_within(node: LocalNode, started: StartedCluster, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not node.is_gone() or _unfinished(started, node):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True

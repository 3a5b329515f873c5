"""Topology reports of the local nodes, and what is shown while a request is followed."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.cluster.node_calls import choose_nodes, control_caller, local_transport, run_async
from ebla.cli.flags import DATA_DEFAULT
from ebla.client.request_following import FollowedState
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import HostId, RequestId
from ebla.runtime.tcp_transport import TcpTransport
from ebla.wire.topology_messages import TopologyReport, TopologyReportRequest
from ebla.wire.verbs import TOPOLOGY_REPORT

REPORT_MS = 3_000
"""A node gives the leader 1 s of it."""
POLL_S = 0.5
QUIET_S = 5.0
"""Between two plain lines of which only the figures or the cause differ."""
BAR_WIDTH = 20
INTERRUPTED = 130
"""The exit status of a process that Ctrl-C ended."""

FetchReport = Callable[[], Awaitable[TopologyReport]]


async def fetch_report(data: Path, name: str | None) -> TopologyReport:
    """Of the node of that name, or of the first running node that the leader answers. If it answers none, the report
    with the latest version: which nodes are up, lag or hang is not known in advance."""
    nodes = choose_nodes(data, name)
    failures: list[str] = []
    local: list[TopologyReport] = []
    async with local_transport() as transport, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(_ask(transport, node)) for node in nodes]
        for answer in asyncio.as_completed(asking):
            report = await answer
            if isinstance(report, EblaError):
                failures.append(report.message)
            elif report.local_age_ms is not None:
                local.append(report)
            else:
                for task in asking:
                    task.cancel()
                return report
    if not local:
        raise Unavailable(f"no node answers: {'; '.join(failures)}", advice="see `ebla status`")
    return max(local, key=lambda report: report.version)


async def _ask(transport: TcpTransport, node: LocalNode) -> TopologyReport | EblaError:
    try:
        return await control_caller(transport, node)(TOPOLOGY_REPORT, TopologyReportRequest(), REPORT_MS)
    except EblaError as error:
        return error


def local_names(data: Path) -> dict[HostId, str]:
    known = [(node.folder.read_identity(), node.name) for node in find_nodes(data)]
    return {identity.host: name for identity, name in known if identity is not None}


# ---- following


class Followed(Protocol):
    """A request, or a node that is about to make one."""

    @property
    def label(self) -> str: ...

    @property
    def request(self) -> RequestId | None: ...

    @property
    def is_ended(self) -> bool: ...

    async def check(self, report: TopologyReport | None, problem: str) -> FollowedState:
        """None: no node has answered; `problem` says why."""
        ...


def follow(
    fetch: FetchReport, followed: Sequence[Followed], data: Path, *, quiet: bool, timeout_s: float | None = None
) -> bool:
    """Shows them until all have ended, or the timeout has passed; returns whether they have ended. Ctrl-C leaves them
    running and ends the command."""
    try:
        with new_display(quiet=quiet) as display:
            return run_async(follow_all(fetch, followed, display, timeout_s))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        for one in followed:
            if not one.is_ended:
                how = "see `ebla status`" if one.request is None else _how_to_go_on(one.request, data)
                sys.stderr.write(f"{one.label} goes on: {how}\n")
        raise typer.Exit(INTERRUPTED) from None


def _how_to_go_on(request: RequestId, data: Path) -> str:
    return f"{wait_command(data, request)}; to withdraw it: {topology_command('abort', data, request)}"


def wait_command(data: Path, request: RequestId | str) -> str:
    return topology_command("wait", data, request)


def topology_command(name: str, data: Path, request: RequestId | str) -> str:
    return f"ebla topology {name} {request}{'' if data == DATA_DEFAULT else f' --data {data}'}"


async def follow_all(
    fetch: FetchReport, followed: Sequence[Followed], show: "Display", timeout_s: float | None = None
) -> bool:
    """Returns whether all have ended before the timeout. Any node may answer, so a change of leader and the end of the
    node that answered last do not matter."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while True:
        report, problem = await _fetched(fetch)
        for one in followed:
            if not one.is_ended:
                show.update(await one.check(report, problem))
        if all(one.is_ended for one in followed):
            return True
        pause_s = POLL_S if deadline is None else min(POLL_S, deadline - loop.time())
        if pause_s <= 0:
            return False
        await asyncio.sleep(pause_s)


async def _fetched(fetch: FetchReport) -> tuple[TopologyReport | None, str]:
    try:
        return await fetch(), ""
    except EblaError as error:
        return None, error.message


class Display(Protocol):
    def update(self, state: FollowedState) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def new_display(*, quiet: bool) -> Display:
    """On standard error: a bar for each request on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    return FollowedBars(console) if console.is_terminal and not quiet else FollowedLines(quiet=quiet)


class FollowedLines:
    """Prints changes of the state at once, and changes of the rest now and then, so that a log stays readable."""

    def __init__(self, *, quiet: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._now_s = now_s
        self._shown: dict[str, tuple[str, str, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, state: FollowedState) -> None:
        what, text, at_s = self._shown.get(state.label, ("", "", 0.0))
        is_new = state.state != what or (state.text != text and self._now_s() - at_s >= QUIET_S)
        if is_new and not self._quiet:
            self._shown[state.label] = (state.state, state.text, self._now_s())
            sys.stderr.write(f"{state.text}\n")
            sys.stderr.flush()


class FollowedBars:
    """One line for each request at the bottom of the terminal while it is entered."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(BarColumn(BAR_WIDTH), TextColumn("{task.description}"), console=console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, state: FollowedState) -> None:
        if state.label not in self._tasks:
            self._tasks[state.label] = self._progress.add_task("", total=None)
        figures = state.progress
        total = None if figures is None or not figures.bytes_total else figures.bytes_total
        self._progress.update(
            self._tasks[state.label],
            description=state.text.replace("[", r"\["),
            completed=0 if figures is None or total is None else min(figures.bytes_moved, total),
            total=total,
        )

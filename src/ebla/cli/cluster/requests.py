"""Requests to the topology coordinator: how commands submit them, follow them, and show how they ended."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ebla.cli.cluster.local_cluster import find_nodes, has_left
from ebla.cli.cluster.node_calls import choose_nodes, control_caller, local_transport, run_async
from ebla.cli.cluster.topology_reports import fetch_report, follow, local_names, wait_command
from ebla.cli.command import NodeFlags
from ebla.cli.output import print_json
from ebla.client.request_following import FollowedState, RequestFollower
from ebla.client.topology_view import RequestResult, moved_text, node_label, row_of, short_id
from ebla.model.errors import DeadlineExceeded, EblaError, Outcome, Refused, Unavailable, Unreachable
from ebla.model.identity import RequestId
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import NodeRequestKind, RequestOutcome
from ebla.wire.topology_messages import SubmitTopologyRequest, TopologyReport, TopologyRequest
from ebla.wire.verbs import SUBMIT_REQUEST, A, Q, Verb

SUBMIT_S = 60.0
"""How long a command tries to submit a request while no majority answers."""
CALL_MS = 10_000
"""Of one call: a node that hangs must not use up the whole time."""
RETRY_S = 0.5
STILL_RUNNING = 3


@dataclass(frozen=True, kw_only=True)
class RequestFlags(NodeFlags):
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the id of the request, and do not wait for its end.")
    ] = False


# ---- submitting


def check_request(flags: NodeFlags, request: TopologyRequest) -> tuple[str, ...]:
    """What an operator should confirm first. Raises what would refuse the request."""
    message = SubmitTopologyRequest(request=request, check_only=True)
    return run_async(call_first(flags.data, flags.node, SUBMIT_REQUEST, message, CALL_MS)).concerns


def confirm(concerns: tuple[str, ...], *, is_confirmed: bool) -> None:
    for line in concerns:
        sys.stderr.write(f"! {line}\n")
    if not concerns or is_confirmed:
        return
    if not sys.stdin.isatty():
        raise Refused("this needs to be confirmed, and there is no terminal to ask on", advice="repeat it with --yes")
    if not typer.confirm("continue?", err=True):
        raise Refused("it was not confirmed")


def submit_request(flags: NodeFlags, request: TopologyRequest) -> TopologyRequest:
    """The stored request."""
    return run_async(_submit(flags, request))


async def _submit(flags: NodeFlags, request: TopologyRequest) -> TopologyRequest:
    """At one node after another, always under the same id, so that it is stored once."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SUBMIT_S
    message = SubmitTopologyRequest(request=request)
    may_be_stored, shown, problem = False, "", "no node answers"
    async with local_transport() as transport:
        while True:
            for node in choose_nodes(flags.data, flags.node):
                left_ms = int((until_s - loop.time()) * 1000)
                if left_ms <= 0:
                    raise _not_submitted(request.id, problem, may_be_stored=may_be_stored)
                try:
                    answer = await control_caller(transport, node)(SUBMIT_REQUEST, message, min(CALL_MS, left_ms))
                except EblaError as error:
                    if not error.is_transient and error.outcome is Outcome.NOT_APPLIED:
                        raise
                    may_be_stored |= error.outcome is Outcome.UNKNOWN
                    problem = error.message
                else:
                    assert answer.request is not None, "only a check stores nothing"
                    return answer.request
            if problem != shown and not flags.as_json:
                sys.stderr.write(f"ebla: not submitted yet: {problem}\n")
            shown = problem
            await asyncio.sleep(RETRY_S)


def _not_submitted(request: RequestId, problem: str, *, may_be_stored: bool) -> EblaError:
    if may_be_stored:
        return DeadlineExceeded(
            f"it is not known whether request {request} was stored: {problem}",
            advice=f"look for it: ebla topology wait {request}",
        )
    return Unavailable(f"no majority stored the request within {SUBMIT_S:.0f} s: {problem}", advice="see `ebla status`")


async def call_first(data: Path, name: str | None, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
    """At the first node that can be reached. Another one is tried only where the request was not sent."""
    problem: EblaError = Unavailable("no node answers")
    async with local_transport() as transport:
        for node in choose_nodes(data, name):
            try:
                return await control_caller(transport, node)(verb, request, deadline_ms)
            except Unreachable as error:
                problem = error
    raise problem


# ---- following


@dataclass(slots=True, kw_only=True)
class FollowedRequest:
    """A request that exists: any report about it will do."""

    data: Path
    node: str | None
    """Which one answers; None: any."""
    stored: TopologyRequest
    label: str
    follower: RequestFollower
    is_ended: bool = False

    @property
    def request(self) -> RequestId:
        return self.stored.id

    async def check(self, report: TopologyReport | None, problem: str) -> FollowedState:
        if report is None:
            if not await self._has_left_here():
                return FollowedState(label=self.label, state="not known", cause=problem)
            self.follower.conclude(self.stored)
            self.is_ended = True
            return FollowedState(label=self.label, state=str(RequestOutcome.DONE))
        state = self.follower.check(report, asyncio.get_running_loop().time())
        self.is_ended = self.follower.ended is not None
        return state

    def result(self) -> RequestResult:
        return self.follower.result()

    async def _has_left_here(self) -> bool:
        """Only a node that has left marks its folder. It may have been the only one that could be asked."""
        if not isinstance(self.stored, NodeRequest) or self.stored.kind is not NodeRequestKind.LEAVE:
            return False
        for node in find_nodes(self.data):
            identity = node.folder.read_identity()
            if identity is not None and identity.host == self.stored.host:
                return await has_left(node)
        return False


def follow_request(flags: NodeFlags, followed: FollowedRequest, timeout_s: float | None = None) -> bool:
    """Whether it has ended before the timeout."""
    return follow(
        lambda: fetch_report(flags.data, flags.node), (followed,), flags.data, quiet=flags.as_json, timeout_s=timeout_s
    )


def followed_request(
    flags: NodeFlags,
    report: TopologyReport,
    request: TopologyRequest,
    *,
    label: str | None = None,
    until_settled: bool = False,
) -> FollowedRequest:
    label = label or f"{subject_text(flags, report, request)}, request {short_id(report, request.id)}"
    follower = RequestFollower(request.id, label, until_settled=until_settled)
    return FollowedRequest(data=flags.data, node=flags.node, stored=request, label=label, follower=follower)


def subject_text(flags: NodeFlags, report: TopologyReport, request: TopologyRequest) -> str:
    if not isinstance(request, NodeRequest):
        return str(request.kind)
    return f"{request.kind} of {host_text(flags, report, request)}"


def host_text(flags: NodeFlags, report: TopologyReport, request: NodeRequest) -> str:
    row = row_of(report, request.host)
    return str(request.host) if row is None else node_label(row, local_names(flags.data))


# ---- a whole command


def run_request(flags: RequestFlags, request: NodeRequest, done: str) -> int:
    """Submits the request of a node, and follows it. `done` follows the node's name in the last line. Returns the exit
    status."""
    report = run_async(fetch_report(flags.data, flags.node))
    stored = submit_request(flags, request)
    if flags.detach:
        return show_detached(flags, stored)
    if not flags.as_json:
        sys.stderr.write(f"request {short_id(report, stored.id)}: {subject_text(flags, report, stored)}\n")
    followed = followed_request(flags, report, stored)
    follow_request(flags, followed)
    return show_result(flags, followed, done=f"{host_text(flags, report, request)} {done}")


def show_detached(flags: NodeFlags, request: TopologyRequest) -> int:
    result = RequestResult(request=str(request.id), outcome=str(request.outcome), error=request.error)
    flags.show(msgspec.to_builtins(result), str(request.id))
    return 0


def show_skipped(followed: FollowedRequest) -> None:
    """What an operation that has ended could not move."""
    ended = followed.follower.ended
    for line in ended.skipped if isinstance(ended, NodeRequest) else ():
        sys.stderr.write(f"! {line}\n")


def show_result(flags: NodeFlags, followed: FollowedRequest, *, is_ended: bool = True, done: str | None = None) -> int:
    """Returns the exit status. `done` begins the last line of a request that is done."""
    result, label = followed.result(), followed.label
    show_skipped(followed)
    if flags.as_json:
        print_json(msgspec.to_builtins(result))
    elif not is_ended:
        sys.stderr.write(f"ebla: {label} still runs; ask again with: {wait_command(flags.data, str(result.request))}\n")
    elif result.outcome == RequestOutcome.DONE:
        took = "" if result.seconds is None else f" after {result.seconds:.1f} s"
        typer.echo(f"{done or f'{label} is done'}{took}{moved_text(result)}")
    else:
        sys.stderr.write(f"ebla: {label} failed: {result.error}\n")
    if not is_ended:
        return STILL_RUNNING
    return 0 if result.outcome == RequestOutcome.DONE else 1

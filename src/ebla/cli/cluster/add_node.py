"""`ebla add-node`: creates and starts further nodes of the cluster on this machine, and follows their joins."""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from ebla.cli.cluster.local_cluster import AddedNodesSpec, LocalNode, add_nodes, last_stop, lock_data_folder, start
from ebla.cli.cluster.node_calls import choose_nodes, control_caller, local_transport, run_async
from ebla.cli.cluster.node_requests import IgnoreDead
from ebla.cli.cluster.operations import resolve_host
from ebla.cli.cluster.requests import FollowedRequest, RequestFlags, followed_request, show_skipped
from ebla.cli.cluster.topology_reports import fetch_report, follow
from ebla.cli.command import OutputFlags, add_command
from ebla.cli.output import print_json
from ebla.client.request_following import FollowedState
from ebla.client.topology_view import RequestResult, latest_request, moved_text, row_of
from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import HostId, RequestId
from ebla.options import replace_overrides
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.topology_messages import TopologyReport
from ebla.wire.verbs import STATUS, StatusRequest

COUNT_MAX = 50
STATUS_MS = 1_000
SUBMIT_S = 60.0
"""How long --detach waits until the new nodes have made their requests."""
END_S = 10.0
"""How long a node that has ended is looked for in the reports: what ended it may reach them a little later."""

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, "add-node", is_change=True)
def add_node(
    flags: RequestFlags,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=COUNT_MAX, help="How many nodes.")] = 1,
    datacenter: Annotated[str | None, typer.Option("--datacenter", metavar="D", help="By default as node1.")] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="R", help="By default one for each node.")] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="M", help="Shard processes of each; by default as node1.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set an option of each new node.")
    ] = None,
    replace: Annotated[
        str | None, typer.Option("--replace", metavar="HOST", help="Take the place of this dead node, in its rack.")
    ] = None,
    ignore_dead: IgnoreDead = None,
) -> int:
    """Add nodes to the cluster on this machine, and wait until they are in the ring.

    The nodes run on when the command ends, as after `ebla up --no-follow`; Ctrl-C leaves the joins running too.
    """
    choose_nodes(flags.data, flags.node)  # raises if none runs: the new node would wait for a cluster that is down
    if replace is None and ignore_dead:
        raise typer.BadParameter("--ignore-dead goes with --replace")
    if replace is not None and count != 1:
        raise typer.BadParameter("--replace adds one node")
    report = run_async(fetch_report(flags.data, flags.node))
    replaced = None if replace is None else _row_of_replaced(flags, report, replace)
    arguments: tuple[str, ...] = ()
    if replaced is not None:
        datacenter, rack = datacenter or replaced.datacenter, rack or replaced.rack
        ignored = dict.fromkeys(str(resolve_host(flags, one)) for one in ignore_dead or ())
        arguments = replace_overrides(str(replaced.host), tuple(ignored))
    spec = AddedNodesSpec(
        count=count, datacenter=datacenter, rack=rack, shards=shards, overrides=tuple(overrides or ())
    )
    with lock_data_folder(flags.data):
        taken = [node.address for node in report.nodes if node.state is not NodeState.LEFT]
        joins = [start_join(flags, node, arguments) for node in add_nodes(flags.data, spec, taken)]
    status = _detach(flags, joins) if flags.detach else _follow(flags, joins)
    if replaced is not None and status == 0 and not flags.detach:
        _show_tablets(flags, replaced)
    return status


def _row_of_replaced(flags: RequestFlags, report: TopologyReport, text: str) -> Node:
    host = resolve_host(flags, text)
    row = row_of(report, host)
    if row is None or row.state is NodeState.LEFT:
        raise InvalidRequest(f"{text!r} is no member of the cluster any more", advice="see `ebla topology`")
    return row


def _show_tablets(flags: RequestFlags, replaced: Node) -> None:
    count = sum(1 for tablets in flags.snapshot().tablets.values() for _ in tablets.tablets_on(replaced.host))
    if count:
        sys.stderr.write(
            f"! {count} tablet replicas stay on {replaced.address}, which has left: they are not rebuilt yet\n"
        )


# ---- one join


@dataclass(slots=True, kw_only=True)
class NodeJoin:
    """A node that this command has started: first it has no request, then its request is followed."""

    flags: RequestFlags
    node: LocalNode
    host: HostId
    process: subprocess.Popen[bytes]
    started_s: float
    followed: FollowedRequest | None = None
    ended_s: float | None = None
    """When its process was first seen to have ended."""
    failure: str = ""
    """Why it ended without an end of its request."""
    seconds: float | None = None
    detaches: bool = False
    """Follow it only until its request is made."""

    @property
    def label(self) -> str:
        return f"{self.node.name} {self.node.options.address}"

    @property
    def request(self) -> RequestId | None:
        return None if self.followed is None else self.followed.request

    @property
    def is_ended(self) -> bool:
        is_made = self.detaches and self.followed is not None
        return bool(self.failure) or is_made or (self.followed is not None and self.followed.is_ended)

    async def check(self, report: TopologyReport | None, problem: str) -> FollowedState:
        if self.process.poll() is not None and self.ended_s is None:
            self.ended_s = time.monotonic()
        request = None if report is None else latest_request(report, self.host)
        if report is not None and request is not None and self.followed is None:
            self.followed = followed_request(self.flags, report, request, label=self.label)
        if self.followed is None:
            state = FollowedState(label=self.label, state="starts", cause=problem or await self._waits_for())
        else:
            state = await self.followed.check(report, problem)
        if self.followed is not None and self.followed.is_ended:
            self.seconds = time.monotonic() - self.started_s
        elif self.ended_s is not None and (self.followed is None or time.monotonic() - self.ended_s >= END_S):
            self.failure = self._why_ended()
            return FollowedState(label=self.label, state=self.failure)
        return state

    def result(self) -> RequestResult:
        if self.followed is None:
            outcome = RequestOutcome.FAILED if self.failure else RequestOutcome.PENDING
            return RequestResult(request=None, outcome=str(outcome), error=self.failure)
        result = self.followed.result()
        if self.failure:
            return msgspec.structs.replace(result, outcome=str(RequestOutcome.FAILED), error=self.failure)
        return msgspec.structs.replace(result, seconds=self.seconds)

    async def _waits_for(self) -> str:
        """As the new node says: before it has a request, no other node knows of it."""
        with suppress(EblaError):
            async with local_transport() as transport:
                status = await control_caller(transport, self.node)(STATUS, StatusRequest(), STATUS_MS)
                return status.waits_for
        return ""

    def _why_ended(self) -> str:
        reason = last_stop(self.node) or f"see {self.node.folder.log}"
        return f"its process ended with status {self.process.poll()}: {reason}"


def start_join(flags: RequestFlags, node: LocalNode, overrides: Sequence[str]) -> NodeJoin:
    identity = node.folder.read_identity()
    assert identity is not None
    process = start(node, overrides)
    return NodeJoin(flags=flags, node=node, host=identity.host, process=process, started_s=time.monotonic())


# ---- what is shown


def _follow(flags: RequestFlags, joins: Sequence[NodeJoin]) -> int:
    follow(lambda: fetch_report(flags.data, flags.node), joins, flags.data, quiet=flags.as_json)
    for join in joins:
        show_join(flags, join)
    return 0 if all(join.result().outcome == RequestOutcome.DONE for join in joins) else 1


def _detach(flags: RequestFlags, joins: Sequence[NodeJoin]) -> int:
    for join in joins:
        join.detaches = True
    is_made = follow(
        lambda: fetch_report(flags.data, flags.node), joins, flags.data, quiet=flags.as_json, timeout_s=SUBMIT_S
    )
    for join in joins:
        if join.failure:
            show_join(flags, join)
        elif flags.as_json:
            print_json(_json(join))
        elif join.request is None:
            sys.stderr.write(f"ebla: {join.label} has made no request yet; see `ebla status`\n")
        else:
            typer.echo(f"{join.request}  {join.label}")
    if any(join.failure for join in joins):
        return 1
    return 0 if is_made else 3


def show_join(flags: OutputFlags, join: NodeJoin) -> None:
    result = join.result()
    if join.followed is not None:
        show_skipped(join.followed)
    if flags.as_json:
        print_json(_json(join))
    elif result.outcome == RequestOutcome.DONE:
        typer.echo(f"{join.label} is normal after {join.seconds or 0:.1f} s{moved_text(result)}")
    else:
        advice = f"; once its row is left: ebla reset-node {join.node.folder.path}"
        sys.stderr.write(
            f"ebla: {join.label} did not join: {result.error}{'' if 'reset-node' in result.error else advice}\n"
        )


def _json(join: NodeJoin) -> dict[str, object]:
    named = {"node": join.node.name, "address": join.node.options.address, "host": str(join.host)}
    fields: dict[str, object] = msgspec.to_builtins(join.result())
    return {**named, **fields}

"""`ebla reset-node`: empties the folder of a node that is not in the ring, so that it joins again as a new host."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.cluster.local_cluster import LocalNode, join_state, load_node
from ebla.cli.cluster.node_calls import call_address, run_async
from ebla.cli.command import OutputFlags, add_command
from ebla.client.node_reset import (
    AbortFirst,
    MayReset,
    MustNotReset,
    ResetDecision,
    can_join_as_it_is,
    decide_reset,
    was_member,
)
from ebla.control.group0.join_state import JoinState
from ebla.group0.join_messages import JoinNodeQuery, JoinNodeQueryAnswer
from ebla.model.errors import EblaError, InvalidRequest, Refused, Unavailable
from ebla.model.identity import Address, RequestId
from ebla.observe.event_reporter import discard_event
from ebla.runtime import file_lock
from ebla.runtime.bootstrap import reset_node
from ebla.runtime.data_folder import NodeIdentity
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import NodeTls, TlsFolder
from ebla.topology.states import JOINING_STATES, NodeState
from ebla.wire.topology_messages import AbortTopologyRequest
from ebla.wire.verbs import ABORT_REQUEST, JOIN_NODE_QUERY

QUERY_MS = 2_000
ABORT_MS = 20_000
ROLLBACK_S = 60.0
POLL_S = 0.5

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, "reset-node", is_change=True)
def reset_node_command(
    flags: OutputFlags,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The node's folder, or its options file.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Empty the folder of a node that was never in the ring or has left it, and draw a new host id.

    Options, cluster id and certificate authority are kept: the same start command joins again.
    """
    if flags.as_json and not yes:
        raise typer.BadParameter("--json needs --yes")
    node = load_node(folder)
    if not yes:
        typer.confirm(f"Delete everything that the node has stored in {node.folder.path}?", abort=True, err=True)
    done = reset_folder(node)
    flags.show(
        {"folder": str(node.folder.path), "old_host": str(done.old.host), "host": str(done.new.host)},
        f"{node.folder.path} is empty ({done.why}); the same start command joins as host {done.new.host}",
    )


@dataclass(frozen=True, slots=True)
class ResetFolder:
    old: NodeIdentity
    new: NodeIdentity
    why: str


def reset_folder(node: LocalNode) -> ResetFolder:
    """Raises `Refused` for a node that runs, is a member, or may be one."""
    identity = node.folder.read_identity()
    if identity is None:
        raise InvalidRequest(f"no node has started in {node.folder.path}", advice="there is nothing to reset")
    held = file_lock.find_held_lock(node.folder.run)
    if held is not None:
        raise Refused(f"the node in {node.folder.path} runs: {held.message}", advice="stop it first")
    # Held until the new identity is stored: a node that starts in between would run on what is being removed.
    with file_lock.acquire(node.folder.control_lock):
        why = run_async(_permission(node, identity))
        return ResetFolder(identity, reset_node(node.options, SystemClock(), SystemRng()), why)


def cannot_join_as_it_is(node: LocalNode) -> bool:
    """Whether the stopped node was never `normal`, and its join can no longer succeed: only a reset gets it in."""
    identity = node.folder.read_identity()
    if identity is None or not node.is_gone():
        return False

    async def check() -> bool:
        cluster = ClusterContacts(node, identity)
        mark = await join_state(node)
        answer = await cluster.query(mark.known)
        return (
            not can_join_as_it_is(mark.stage, answer)
            and not isinstance(decide_reset(mark.stage, answer), MustNotReset)
            and not was_member(mark.stage, answer)
        )

    try:
        return run_async(check())
    except EblaError:
        return False  # its folder is damaged; the node says how


async def _permission(node: LocalNode, identity: NodeIdentity) -> str:
    """Returns why the folder may be emptied, after the end of its open join."""
    cluster, mark = ClusterContacts(node, identity), await join_state(node)
    decision = decide_reset(mark.stage, await cluster.query(mark.known))
    if isinstance(decision, AbortFirst):
        decision = await _after_abort(cluster, mark, decision)
    if isinstance(decision, MustNotReset):
        raise Refused(f"host {identity.host} must keep its folder: {decision.why}", advice=decision.advice)
    assert isinstance(decision, MayReset)
    return decision.why


async def _after_abort(cluster: "ClusterContacts", mark: JoinState, first: AbortFirst) -> ResetDecision:
    if not first.is_required:
        with suppress(EblaError):  # without the abort the request ends some time later: its node never answers
            await cluster.abort(first.request, mark.known)
        return MayReset("it was never accepted")
    await cluster.abort(first.request, mark.known)
    deadline = asyncio.get_running_loop().time() + ROLLBACK_S
    while isinstance(decision := decide_reset(mark.stage, await cluster.query(mark.known)), AbortFirst | MustNotReset):
        if asyncio.get_running_loop().time() >= deadline:
            raise Unavailable(
                f"its join was aborted, and is not rolled back after {ROLLBACK_S:.0f} s; the folder is unchanged",
                advice="see `ebla topology`, then try again",
            )
        await asyncio.sleep(POLL_S)
    return decision


class ClusterContacts:
    """Calls members of the node's cluster, with the node's own certificate."""

    def __init__(self, node: LocalNode, identity: NodeIdentity) -> None:
        self._node = node
        self._identity = identity

    async def query(self, known: Sequence[Address]) -> JoinNodeQueryAnswer | None:
        """What the members say of the host; None: none answers. Members may lag behind, so all are asked."""
        async with self._transport() as transport, asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(self._query_one(transport, address)) for address in self._contacts(known)]
        answers = [answer for task in asking if (answer := task.result()) is not None]
        return max(answers, key=_age, default=None)

    async def abort(self, request: RequestId, known: Sequence[Address]) -> None:
        problem: EblaError = Unavailable("no member of the cluster answers")
        async with self._transport() as transport:
            for address in self._contacts(known):
                order = AbortTopologyRequest(request=request, reason="its node is reset")
                try:
                    await call_address(transport, self._identity, address, ABORT_REQUEST, order, deadline_ms=ABORT_MS)
                except EblaError as error:
                    if not error.is_transient:
                        raise
                    problem = error
                else:
                    return
        raise problem

    async def _query_one(self, transport: TcpTransport, address: Address) -> JoinNodeQueryAnswer | None:
        query = JoinNodeQuery(self._identity.host)
        try:
            answer = await call_address(
                transport, self._identity, address, JOIN_NODE_QUERY, query, deadline_ms=QUERY_MS
            )
        except EblaError:
            return None
        return answer if answer.cluster == self._identity.cluster else None

    def _transport(self) -> TcpTransport:
        return TcpTransport(NodeTls(TlsFolder(self._node.folder.tls)), discard_event)

    def _contacts(self, known: Sequence[Address]) -> list[Address]:
        addresses = dict.fromkeys((*self._node.options.peer_addresses, *known))
        return [address for address in addresses if address != self._node.options.control_address]


def _age(answer: JoinNodeQueryAnswer) -> int:
    """States in the order in which a node has them."""
    if answer.state is None:
        return 0
    return 1 if answer.state in JOINING_STATES else 3 if answer.state is NodeState.LEFT else 2

"""The promises of a node's barrier once it has returned, checked at every effect and every outgoing request.

INV-ROWS-1  no write takes effect on a node below the fence of a version whose barrier returned there
INV-ROWS-2  a node routes no request by a version older than one whose barrier returned there, and no older request that
            it routed or accepted before is still running
INV-ROWS-3  nothing is merged under a session that was closed at a version whose barrier returned there, and no guard
            of it is held
INV-ROWS-4  every process of the node has the version, and every pending replica in it accepts writes

Beside these, no request is routed to a host that has left by the version of the request.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.model.identity import HostId, Replica, SessionId, TopologyVersion
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState

NONE = TopologyVersion(0)


@dataclass(slots=True)
class _Node:
    """The highest values for which a barrier returned."""

    version: TopologyVersion = NONE
    fence: TopologyVersion = NONE
    closed: dict[SessionId, TopologyVersion] = field(default_factory=dict)


class BarrierLedger:
    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._nodes: dict[HostId, _Node] = {}
        self._opened: dict[SessionId, TopologyVersion] = {}
        """The first version that lists each session."""
        self._left: dict[HostId, TopologyVersion] = {}
        """The first version by which each of these hosts has left."""
        self.barriers = 0
        self.effects = 0
        self.older_effects = 0
        """Effects of a version older than the newest whose barrier returned on the node: a fence exists for these."""
        self.streamed_items = 0

    def fail(self, text: str) -> None:
        self._fail(text)

    def saw(self, snapshot: Snapshot) -> None:
        for session in snapshot.sessions:
            self._opened.setdefault(session, snapshot.version)
        for node in snapshot.nodes_in(NodeState.LEFT):
            self._left[node.host] = min(snapshot.version, self._left.get(node.host, snapshot.version))

    def returned(self, host: HostId, snapshot: Snapshot) -> None:
        """The barrier of this snapshot's version holds on the node."""
        node = self._node(host)
        self.barriers += 1
        node.version = max(node.version, snapshot.version)
        node.fence = max(node.fence, snapshot.fence)
        for session, opened in self._opened.items():
            if opened < snapshot.version and session not in snapshot.sessions:
                node.closed.setdefault(session, snapshot.version)

    def is_closed(self, host: HostId, session: SessionId) -> bool:
        return session in self._node(host).closed

    def effect(self, own: Replica, version: TopologyVersion) -> None:
        """A write takes effect in this step."""
        node = self._node(own.host)
        self.effects += 1
        self.older_effects += version < node.version
        if version < node.fence:
            self._fail(f"INV-ROWS-1: {_name(own)} makes a write of version {version}, its fence is {node.fence}")

    def streamed(self, own: Replica, session: SessionId | None, count: int) -> None:
        self.streamed_items += count
        if session is None:
            self._fail(f"INV-ROWS-3: {_name(own)} merges rows under no session")
            return
        closed = self._node(own.host).closed.get(session)
        if closed is not None:
            self._fail(f"INV-ROWS-3: {_name(own)} merges rows of session {session}, closed at version {closed}")

    def sent(self, own: Replica, version: TopologyVersion, target: Replica) -> None:
        """A request leaves a router."""
        node = self._node(own.host)
        if version < node.version:
            self._fail(f"INV-ROWS-2: {_name(own)} routes by version {version} after the barrier of {node.version}")
        left = self._left.get(target.host)
        if left is not None and version >= left:
            self._fail(f"{_name(own)} routes by version {version} to {_name(target)}, which has left at {left}")

    def _node(self, host: HostId) -> _Node:
        found = self._nodes.get(host)
        if found is None:
            found = self._nodes[host] = _Node()
        return found


def _name(own: Replica) -> str:
    return f"shard {own.shard} of host {own.host}"

"""Messages of the join handshake: a new node asks a member, and the coordinator answers it later."""

import uuid

import msgspec

from ebla.group0.members import Member
from ebla.model.identity import ClusterId, HistoryId, HostId
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState, RequestOutcome

MODE = "group0"


class JoinNodeQuery(msgspec.Struct, frozen=True, array_like=True):
    """What is known of this host? Answered from local state, without a quorum."""

    host: HostId


class JoinRequestStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The latest join request of a host."""

    attempt: uuid.UUID
    outcome: RequestOutcome
    position: int = 0
    """In the queue; 0: it runs or has ended."""
    waits_for: str = ""
    error: str = ""


class JoinNodeQueryAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    mode: str
    """Where the topology is kept: `group0`."""
    cluster: ClusterId
    state: NodeState | None = None
    """Of the host's row; None: it has none."""
    request: JoinRequestStatus | None = None


class JoinNodeRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Admit this node. Repeated under the same attempt id it changes nothing."""

    attempt: uuid.UUID
    """Drawn at each start of the process. Also the id of the request, of the addition to group 0, and the join id of
    the member."""
    cluster: ClusterId
    cluster_name: str
    node: Node
    """Its row, without tokens."""
    storage_format: int
    replaced: str = ""
    """The dead node that it replaces, by host id, unique prefix or address; empty: it joins."""
    ignored: tuple[str, ...] = ()
    """Other dead nodes, which the operator wants to be ignored."""


class JoinNodeWait(msgspec.Struct, frozen=True, array_like=True):
    """The request is in the queue; the response follows."""


class JoinNodeResponse(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Of the coordinator, after its decision is committed."""

    attempt: uuid.UUID
    history: HistoryId | None = None
    """Of group 0, if the node is accepted."""
    members: tuple[Member, ...] = ()
    rejection: str = ""
    """Why it is not."""


class JoinNodeResponseAnswer(msgspec.Struct, frozen=True, array_like=True):
    stale_attempt: bool = False
    """The process runs under another attempt id."""

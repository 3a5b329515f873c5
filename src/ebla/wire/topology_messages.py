"""Messages about the running topology operation: what it does, what it waits for, and its abort."""

import uuid

import msgspec

from ebla.model.identity import HostId, RequestId, SessionId, TopologyVersion
from ebla.topology.snapshot import GlobalRequest, Node, NodeRequest
from ebla.topology.states import TransitionState

TopologyRequest = NodeRequest | GlobalRequest


class StreamProgress(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    bytes_moved: int = 0
    bytes_total: int = 0
    """An estimate; 0: not known."""
    ranges_done: int = 0
    ranges_total: int = 0


class WaitCause(msgspec.Struct, frozen=True, array_like=True):
    """Why an operation makes no progress. The same text is in every place that shows it."""

    text: str
    since_ms: int
    """For how long, in milliseconds."""


class TopologyReportRequest(msgspec.Struct, frozen=True, array_like=True):
    """Answered by any node, without a quorum. The causes come from the leader, if it answers in time."""

    forward: bool = True


class RequestReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    request: TopologyRequest
    waits_for: WaitCause | None = None
    progress: StreamProgress | None = None


class TopologyReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    """The node that answered."""
    coordinator: HostId | None = None
    term: int = 0
    version: TopologyVersion
    fence: TopologyVersion
    transition: TransitionState | None = None
    transition_ms: int | None = None
    """For how long; None: not known on this node."""
    local_age_ms: int | None = None
    """Set if the leader did not answer: how old this node's state may be."""
    waits_for: WaitCause | None = None
    """Of the coordinator as a whole."""
    nodes: tuple[Node, ...] = ()
    open: tuple[RequestReport, ...] = ()
    """The running request, then the queue in its order, then the global requests."""
    ended: tuple[TopologyRequest, ...] = ()
    """All that are kept, newest first."""


class SubmitTopologyRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Put a request into the queue. Any node takes it; it needs a majority of group 0. The caller draws the id: sent
    again, the request is not stored again."""

    request: TopologyRequest
    """The node that takes it sets the initiator and the time."""
    check_only: bool = False
    """Store nothing; answer what an operator should know before."""


class SubmitTopologyAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    request: TopologyRequest | None = None
    """As it is stored. Of another one, if a request of that kind is open and they would do the same. None: it was only
    checked."""
    concerns: tuple[str, ...] = ()
    """What an operator should confirm, one sentence each."""


class AbortTopologyRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Withdraw a request. Any node takes it; it needs a majority of group 0."""

    request: RequestId
    reason: str = ""


class AbortTopologyAnswer(msgspec.Struct, frozen=True, array_like=True):
    request: TopologyRequest
    """As it is afterwards: ended, or running with the error that rolls it back."""


LEFT_AS_REQUESTED = ""


class StopNodeRequest(msgspec.Struct, frozen=True, array_like=True):
    """The node has left the topology, or its join was rolled back: it must end."""

    reason: str
    """`LEFT_AS_REQUESTED`: nothing went wrong."""


class StreamOrder(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Stream the vnode ranges of the node in transition."""

    session: SessionId
    version: TopologyVersion
    """Its barrier has passed: plan by this version or a later one."""
    request: uuid.UUID


class StreamResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How far the pipeline is with an order."""

    session: SessionId
    progress: StreamProgress
    is_done: bool = False
    error: str = ""
    """What failed, with table, range and host; it is retried."""
    is_final: bool = False
    """With an error: a retry cannot succeed (no room on the new node's disk, damaged source data)."""
    unavailable: str = ""
    """Why Spark cannot run the transfers now."""


class StreamWatchRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Of the pipeline to its control: what it has done, and wait for the next order."""

    pid: int
    result: StreamResult | None = None
    seen: int = 0
    """The number of the order it works on."""
    hold_ms: int
    reached: str = ""
    """The fault point that the pipeline has reached; control answers when it may continue."""


class StreamWatchAnswer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Grows with each change of the order."""
    order: StreamOrder | None = None
    """None: end what runs."""
    fault_points: tuple[str, ...] = ()
    """Where a run has to report that it got there, and wait for the answer."""

"""Topology reports for tests."""

import uuid

import msgspec

from ebla.model.identity import HostId, RequestId, TopologyVersion
from ebla.topology.snapshot import GlobalRequest, Node, NodeRequest
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, NodeState, RequestOutcome, TransitionState
from ebla.wire.topology_messages import RequestReport, StreamProgress, TopologyReport, WaitCause

HOSTS = [HostId(uuid.UUID(int=number << 96)) for number in range(1, 7)]
NAMES = {host: f"node{number}" for number, host in enumerate(HOSTS, 1)}
JOIN = RequestId(uuid.UUID("3f2a0000-0000-4000-8000-000000000001"))
QUEUED = RequestId(uuid.UUID("8c010000-0000-4000-8000-000000000002"))
REPAIR = RequestId(uuid.UUID("cdc00000-0000-4000-8000-000000000004"))
OLD = RequestId(uuid.UUID("3f2b0000-0000-4000-8000-000000000003"))


def node(number: int, state: NodeState = NodeState.NORMAL, tokens: int = 16) -> Node:
    return Node(
        host=HOSTS[number - 1],
        datacenter="dc1",
        rack="r1",
        shard_count=2,
        ignore_msb=0,
        release_version="1",
        address=f"127.0.0.{number}",
        num_tokens=16,
        state=state,
        tokens=tuple(range(tokens)),
    )


def request(
    number: int,
    ident: RequestId,
    outcome: RequestOutcome = RequestOutcome.PENDING,
    error: str = "",
    end_ms: int | None = None,
) -> NodeRequest:
    return NodeRequest(
        id=ident,
        kind=NodeRequestKind.JOIN,
        host=HOSTS[number - 1],
        initiator=HOSTS[0],
        start_ms=1_700_000_000_000,
        outcome=outcome,
        error=error,
        end_ms=end_ms,
    )


def global_request(outcome: RequestOutcome = RequestOutcome.PENDING, error: str = "") -> GlobalRequest:
    return GlobalRequest(
        id=REPAIR,
        kind=GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS,
        initiator=HOSTS[0],
        start_ms=1_700_000_000_000,
        outcome=outcome,
        error=error,
        end_ms=None if outcome is RequestOutcome.PENDING else 1_700_000_001_000,
    )


def joining(version: int = 58, moved: int = 0, waits_for: WaitCause | None = None) -> TopologyReport:
    """Node 4 joins, node 5 waits, and an earlier join of node 6 was aborted."""
    progress = StreamProgress(
        bytes_moved=moved, bytes_total=200_000_000, ranges_done=moved // 4_000_000, ranges_total=50
    )
    aborted = request(6, OLD, RequestOutcome.FAILED, "aborted: by an operator", 1_700_000_002_500)
    return TopologyReport(
        host=HOSTS[0],
        coordinator=HOSTS[1],
        term=7,
        version=TopologyVersion(version),
        fence=TopologyVersion(57),
        transition=TransitionState.WRITE_BOTH_READ_OLD,
        transition_ms=12_000,
        nodes=(
            *(node(number) for number in (1, 2, 3)),
            node(4, NodeState.BOOTSTRAPPING),
            node(5, NodeState.NONE, 0),
            node(6, NodeState.LEFT, 0),
        ),
        open=(
            RequestReport(
                request=request(4, JOIN, RequestOutcome.RUNNING),
                waits_for=waits_for,
                progress=progress if moved else None,
            ),
            RequestReport(request=request(5, QUEUED), waits_for=WaitCause("queued: position 1 behind 3f2a", 11_000)),
        ),
        ended=(aborted,),
    )


def ended(outcome: RequestOutcome, error: str = "", state: NodeState = NodeState.NORMAL) -> TopologyReport:
    """The join of node 4 has ended."""
    return TopologyReport(
        host=HOSTS[2],
        coordinator=HOSTS[2],
        term=8,
        version=TopologyVersion(61),
        fence=TopologyVersion(60),
        nodes=(*(node(number) for number in (1, 2, 3)), node(4, state)),
        ended=(
            msgspec.structs.replace(
                request(4, JOIN, outcome, error, 1_700_000_012_300), streamed_bytes=8_000_000, streamed_ranges=2
            ),
        ),
    )

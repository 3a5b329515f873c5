"""The topology as it is now, or later: what was committed before the question is in the view that is answered."""

from ebla.broker.broker_deps import BrokerDeps
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DeadlineExceeded, EblaError, Unavailable
from ebla.transfers.deadline import Deadline
from ebla.wire.feed_messages import ReadBarrierRequest
from ebla.wire.verbs import READ_BARRIER


async def fresh_view(parts: BrokerDeps, deadline: Deadline) -> View:
    """A write that was acknowledged before was routed by this version or an older one."""
    within_ms = deadline.at_most_ms(parts.limits.barrier_ms)
    try:
        answer = await parts.doors.control(READ_BARRIER, ReadBarrierRequest(), within_ms)
    except (Unavailable, DeadlineExceeded) as error:
        raise _without_majority(parts.view, error) from error
    if not await parts.view.wait_revision(answer.revision, deadline.at_most_ms(parts.limits.barrier_ms) / 1000):
        raise Unavailable(
            f"the topology has not come to this shard up to revision {answer.revision.index} in time",
            advice="ask another node, or try again in a moment",
        )
    return parts.view.current


def _without_majority(view: TopologyView, error: EblaError) -> Unavailable:
    """A barrier that does not come: as a rule more than half of the nodes are down, and who runs the job knows of no
    barriers. Nothing has happened: a barrier only reads."""
    nodes = view.current.snapshot.nodes
    down = sorted(f"{nodes[host].address} ({host})" for host in view.down if host in nodes)
    seen = f"held to be down here: {', '.join(down)}" if down else "none is held to be down here as yet"
    return Unavailable(
        f"the cluster could not agree on its present state, for which more than half of its nodes are needed; {seen} "
        f"({error.message})",
        advice="`ebla status` tells which nodes are down and why: bring them back, then run the job again",
    )

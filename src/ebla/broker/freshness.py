"""The topology as it is now, or later: what was committed before the question is in the view that is answered."""

from ebla.broker.broker_parts import BrokerParts
from ebla.broker.deadline import Deadline
from ebla.model.errors import Unavailable
from ebla.wire.feed_messages import ReadBarrierRequest
from ebla.wire.topology_view import View
from ebla.wire.verbs import READ_BARRIER


async def fresh_view(parts: BrokerParts, deadline: Deadline) -> View:
    """A write that was acknowledged before was routed by this version or an older one."""
    within_ms = deadline.at_most_ms(parts.limits.barrier_ms)
    answer = await parts.doors.control(READ_BARRIER, ReadBarrierRequest(), within_ms)
    if not await parts.view.wait_revision(answer.revision, deadline.at_most_ms(parts.limits.barrier_ms) / 1000):
        raise Unavailable(
            f"the topology has not come to this shard up to revision {answer.revision.index} in time",
            advice="ask another node, or try again in a moment",
        )
    return parts.view.current

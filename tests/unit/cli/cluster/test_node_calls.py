"""The topology, read from group 0 by a client."""

from typing import Any

from tests.unit.topology.world import HISTORY, cluster

from ebla.cli.cluster.node_calls import read_topology
from ebla.model.transaction import Revision
from ebla.wire.group0_messages import Group0ReadAnswer, Group0ReadRequest, KeyValue
from ebla.wire.verbs import GROUP0_READ, Verb

PAGE_KEYS = 7


async def test_the_topology_is_put_together_from_pages() -> None:
    world, _ = cluster(3)
    keys = [KeyValue(key, value, at) for key, (value, at) in sorted(world.group0.values.items())]
    revision = Revision(HISTORY, world.group0.index)
    starts: list[int] = []

    async def call(verb: Verb[Any, Any], request: Group0ReadRequest, _deadline_ms: int) -> Any:
        assert verb is GROUP0_READ
        starts.append(request.start)
        page = tuple(keys[request.start : request.start + PAGE_KEYS])
        return Group0ReadAnswer(revision, page, more=request.start + PAGE_KEYS < len(keys))

    assert await read_topology(call, 1000) == world.snapshot  # type: ignore[arg-type]  # one verb is enough here
    assert len(starts) > 1, "one page would prove nothing"

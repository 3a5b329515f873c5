"""What the coordinator says before it may act."""

import uuid
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.topology.world import cluster, host

from ebla.control.coordinator.coordinator import Coordinator
from ebla.control.coordinator.coordinator_deps import CoordinatorDeps
from ebla.leadership.activities import ActivityRefused, HeldLeases, LeadershipView
from ebla.leadership.messages import LeaseId


class Waiting:
    """A leader that waits for leases; this one has those of some voters."""

    def __init__(self, granted: tuple[int, ...]) -> None:
        self.world, _ = cluster(3)
        self.held = HeldLeases(
            term=2, lease_id=LeaseId(uuid.UUID(int=9)), deadlines=dict.fromkeys(map(host, granted), 5_000), troubles={}
        )
        self.seen = ""
        topology = SimpleNamespace(clock=SimpleNamespace(boot_ms=lambda: 1_000), report=lambda _event, _fields: None)
        activities = SimpleNamespace(run=self.run)
        leadership = SimpleNamespace(
            activities=activities, view=self.view, settings=lambda: SimpleNamespace(period_ms=100)
        )
        deps = SimpleNamespace(
            topology=topology, leadership=leadership, committed=SimpleNamespace(snapshot=self.world.snapshot)
        )
        self.coordinator = Coordinator(cast("CoordinatorDeps", deps))

    def view(self) -> LeadershipView:
        hosts = tuple(self.world.snapshot.nodes)
        return LeadershipView(now_ms=1_000, own=host(1), lease=None, lease_until_ms=0, held=self.held, voters=(hosts,))

    async def run(self, *_arguments: Any) -> None:
        found = self.coordinator.causes.of(None)
        self.seen = "" if found is None else found.text
        raise ActivityRefused("it waited for too long")


async def test_a_new_leader_names_the_nodes_whose_leases_it_waits_for() -> None:
    waiting = Waiting(granted=(1,))
    await waiting.coordinator._lead(0)
    addresses = [waiting.world.snapshot.node(host(number)).address for number in (2, 3)]
    assert waiting.seen == f"waiting for the lease of {', '.join(addresses)}"


async def test_with_a_majority_of_leases_nothing_is_waited_for() -> None:
    waiting = Waiting(granted=(1, 3))
    await waiting.coordinator._lead(0)
    assert waiting.seen == ""

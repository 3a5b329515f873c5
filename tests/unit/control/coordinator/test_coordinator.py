"""What the coordinator says before it may act, and what it does beside its loop."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from tests.async_tests import settled
from tests.unit.topology.world import cluster, host

from ebla.control.coordinator.coordinator import Coordinator, CoordinatorLoop
from ebla.control.coordinator.coordinator_deps import CommitConflict, CoordinatorDeps, CoordinatorRun
from ebla.control.coordinator.wait_causes import WaitCauses
from ebla.leadership.activities import ActivityRefused, HeldLeases, LeadershipView
from ebla.leadership.messages import LeaseId
from ebla.model.identity import HostId, TopologyVersion
from ebla.settings_store.registry import TopologySettings
from ebla.topology.commands import Command, RaiseFence
from ebla.topology.request_queue import unsettled_requests
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeRequestKind


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


class Settling:
    """A run of the coordinator whose last remove has ended, while a node has not acknowledged that version."""

    def __init__(self) -> None:
        self.world, driver = cluster(4)
        self.world.dead.add(host(2))
        self.request = self.world.ask(NodeRequestKind.REMOVE, 2)
        while self.world.snapshot.node_requests[self.request.id].is_open:
            driver.step()
        self.acknowledged = asyncio.Event()
        self.barriers: list[TopologyVersion] = []
        self.conflicts = 1
        self.causes = WaitCauses(lambda: 0, lambda _event, _fields: None)
        self.deps = SimpleNamespace(
            topology=SimpleNamespace(clock=SimpleNamespace(boot_ms=lambda: 0), barriers=self),
            committed=self,
            settings=TopologySettings,
        )

    @property
    def snapshot(self) -> Snapshot:
        return self.world.snapshot

    @property
    def changed(self) -> "Settling":
        return self

    async def wait(self, _timeout_s: float) -> None:
        """For a change of the topology, which does not come."""
        await asyncio.Event().wait()

    async def wait_all(
        self,
        version: TopologyVersion,
        awaited: Callable[[], tuple[HostId, ...]],
        on_missing: Callable[[Mapping[HostId, str]], None],
    ) -> None:
        self.barriers.append(version)
        assert host(2) not in awaited(), "it has left"
        on_missing({host(3): "shard-0 has an older version"})
        await self.acknowledged.wait()

    async def commit(self, commands: tuple[Command, ...]) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise CommitConflict("another change was committed first")
        for command in commands:
            self.world.do(command)


async def test_an_ended_remove_is_settled_once_every_node_has_the_version_that_ended_it() -> None:
    """The barrier is repeated after a lost race, and its fence proves to everyone that it has passed."""
    run = Settling()
    (unsettled,) = unsettled_requests(run.snapshot)
    version = run.snapshot.version
    settling = asyncio.create_task(CoordinatorLoop(cast("CoordinatorRun", run)).settle())
    await settled()
    assert run.barriers == [version]
    assert unsettled_requests(run.snapshot) == (unsettled,), "a node has not acknowledged it"
    cause = run.causes.of(unsettled.id)
    assert cause is not None
    assert cause.text == f"barrier of version {version}: 127.0.0.3: shard-0 has an older version"
    run.acknowledged.set()
    await asyncio.sleep(60)
    assert unsettled_requests(run.snapshot) == ()
    assert run.snapshot.fence == version
    assert run.barriers == [version, version], "one commit lost a race"
    assert run.causes.of(unsettled.id) is None
    settling.cancel()


async def test_whoever_raises_the_fence_settles_the_request() -> None:
    """The next operation need not wait for it, and its barrier may come first."""
    run = Settling()
    settling = asyncio.create_task(CoordinatorLoop(cast("CoordinatorRun", run)).settle())
    await settled()
    run.world.do(RaiseFence(run.snapshot.version))
    run.acknowledged.set()
    await asyncio.sleep(60)
    assert run.conflicts == 1, "nothing was committed"
    settling.cancel()

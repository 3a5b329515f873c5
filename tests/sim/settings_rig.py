"""A simulated cluster of three control processes whose settings a test changes and purges."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from ebla.control.settings.settings_node import SettingsNode
from ebla.group0.members import MemberRole
from ebla.model.identity import ClusterId
from ebla.settings_store.registry import ACTOR_NAME, node_key
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.world import World
from ebla.wire.settings_messages import PurgeReport, SettingsPurgeRequest

WAIT_S = 90


@dataclass
class Rig:
    world: World
    cluster: SimCluster

    @property
    def nodes(self) -> list[SimNode]:
        return self.cluster.nodes

    def settings(self, node: SimNode) -> SettingsNode:
        process = node.control_process
        assert process is not None
        assert process.settings is not None
        return process.settings

    def of(self, number: int) -> SettingsNode:
        return self.settings(self.nodes[number])

    def up(self) -> list[SimNode]:
        return [
            node
            for node in self.nodes
            if node.snapshot is not None and node.control_process is not None and node.control_process.settings
        ]

    async def wait_values(self, key: str, value: bytes | None) -> None:
        reached = await self.world.wait_for(
            lambda: all(self.settings(node).store.get(key) == value for node in self.up()), WAIT_S
        )
        assert reached, [self.settings(node).store.entries.get(key) for node in self.up()]

    async def wait_ready(self) -> None:
        """Until every node knows the actors of all, and all vote: fewer need fewer leases."""
        keys = [node_key(node.host, ACTOR_NAME) for node in self.nodes]

        def ready() -> bool:
            stores = [self.settings(node) for node in self.up()]
            return len(stores) == len(self.nodes) and all(
                not one.reset.in_progress
                and all(one.store.get(key) for key in keys)
                and all(member.role is MemberRole.VOTER for member in one.cluster.store.present_members().members)
                for one in stores
            )

        assert await self.world.wait_for(ready, WAIT_S)

    def leader(self) -> SimNode | None:
        return next((node for node in self.up() if self.settings(node).cluster.leads), None)

    async def purge(self, older_than_ms: int = 0) -> PurgeReport:
        assert await self.world.wait_for(lambda: self.leader() is not None, WAIT_S)
        leader = self.leader()
        assert leader is not None
        request = SettingsPurgeRequest(
            round=uuid.UUID(int=self.world.rng.randrange(1, 2**63)), timeout_ms=60_000, older_than_ms=older_than_ms
        )
        for _ in range(100):
            answer = await self.settings(leader).purger.serve(request)
            if answer.report is not None:
                return answer.report
            request = msgspec.structs.replace(request, seen=request.seen + len(answer.steps))
        raise AssertionError("the round does not end")

    async def purge_all(self, key: str) -> None:
        """Purges until no node has an entry under the key."""
        reports = []
        for _ in range(20):
            reports.append(await self.purge())
            if await self.world.wait_for(
                lambda: all(key not in self.settings(node).store.entries for node in self.up()), 5
            ):
                return
        raise AssertionError(reports)

    async def restart(self, node: SimNode) -> None:
        node.control.start()
        assert await self.world.wait_for(lambda: node in self.up(), WAIT_S)
        await self.wait_ready()


def run(test: Callable[[Rig], Awaitable[None]], seed: int = 1) -> None:
    async def main(world: World) -> None:
        cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
        rig = Rig(world, cluster)
        for _ in range(3):
            cluster.add_node(has_children=False).control.start()
        await cluster.wait_all_normal()
        await rig.wait_ready()
        await test(rig)

    World(seed=seed, seconds=600).run(main)

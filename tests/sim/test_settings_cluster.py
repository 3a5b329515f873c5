"""Settings of three real control processes: changes spread, deletions are purged, and lost folders are restored."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from ebla.control.settings.settings_node import SettingsNode
from ebla.model.identity import ClusterId
from ebla.settings_store.purge import PurgeResult
from ebla.settings_store.registry import ACTOR_NAME, SETTINGS_PURGE, node_key
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
        """Until every node knows the actors of all."""
        keys = [node_key(node.host, ACTOR_NAME) for node in self.nodes]

        def ready() -> bool:
            stores = [self.settings(node) for node in self.up()]
            return len(stores) == len(self.nodes) and all(
                not one.reset.in_progress and all(one.store.get(key) for key in keys) for one in stores
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
        assert await self.world.wait_for(lambda: node in self.up(), WAIT_S), node.control_process.gave_up
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


def test_changes_reach_all_nodes_and_survive_restarts() -> None:
    async def test(rig: Rig) -> None:
        seen: list[int] = []
        rig.of(2).subscribe(SETTINGS_PURGE, lambda value: seen.append(value.age_ms))
        await rig.of(0).write({"user/a": b"x", "settings_purge": b'{"age_ms":7}'})
        await rig.wait_values("user/a", b"x")
        assert rig.of(2).value(SETTINGS_PURGE).age_ms == 7
        assert seen == [7]
        for node in rig.nodes:
            node.control.crash()
        for node in rig.nodes:
            node.control.start()
        await rig.cluster.wait_all_normal()
        await rig.wait_values("user/a", b"x")

    run(test)


def test_a_write_needs_no_quorum_and_spreads_later() -> None:
    async def test(rig: Rig) -> None:
        for node in rig.nodes[1:]:
            node.control.crash()
        await rig.of(0).write({"user/a": b"alone"})
        for node in rig.nodes[1:]:
            node.control.start()
        await rig.wait_ready()
        await rig.wait_values("user/a", b"alone")

    run(test)


def test_purge() -> None:
    async def test(rig: Rig) -> None:
        await rig.of(0).write({"user/a": b"x"})
        await rig.wait_values("user/a", b"x")
        await rig.of(1).write({"user/a": None})
        await rig.wait_values("user/a", None)
        down = next(node for node in rig.nodes if node is not rig.leader())
        down.control.crash()
        await rig.world.wait_for(lambda: len(rig.settings(rig.up()[0]).cluster.up_hosts()) == 1, WAIT_S)
        report = await rig.purge()
        assert report.result == PurgeResult.PREPARE_FAILED
        assert [problem.host for problem in report.problems] == [down.host]
        assert report.problems[0].cause.startswith("down for")
        await rig.restart(down)
        await rig.purge_all("user/a")
        await rig.of(0).write({"user/a": b"again"})
        await rig.wait_values("user/a", b"again")
        entry = rig.of(0).store.entries["user/a"]
        assert 0 < entry.purged_us <= rig.of(0).store.header.effective_us

    run(test)


def test_older_copy_of_the_folder_is_reset() -> None:
    async def test(rig: Rig) -> None:
        await rig.of(0).write({"user/a": b"x", "user/b": b"y"})
        await rig.wait_values("user/b", b"y")
        restored = next(node for node in rig.nodes if node is not rig.leader())
        folder = f"{restored.folder}/settings"
        disk = restored.control.machine.disk
        restored.control.crash()
        copy = disk.copy_folder(folder)
        await rig.restart(restored)
        await rig.of(1).write({"user/a": None})
        await rig.purge_all("user/a")
        restored.control.crash()
        disk.put_folder(folder, copy)
        restored.control.start()

        def is_reset() -> bool:
            return restored in rig.up() and any("older copy" in one for one in rig.settings(restored).warnings())

        assert await rig.world.wait_for(is_reset, WAIT_S)
        await rig.wait_ready()
        await rig.wait_values("user/a", None)
        assert all("user/a" not in rig.settings(node).store.entries for node in rig.nodes)

    run(test)


def test_lost_folder_is_reset() -> None:
    async def test(rig: Rig) -> None:
        await rig.of(0).write({"user/a": b"x", "user/b": b"y"})
        await rig.of(0).write({"user/a": None})
        await rig.wait_values("user/b", b"y")
        await rig.purge_all("user/a")
        lost = next(node for node in rig.nodes if node is not rig.leader())
        before = rig.settings(lost).store.header.actor
        lost.control.crash()
        lost.control.machine.disk.put_folder(f"{lost.folder}/settings", None)
        await rig.restart(lost)
        await rig.wait_values("user/b", b"y")
        after = rig.settings(lost)
        assert after.store.header.actor != before
        assert after.store.header.watermark_us == after.store.header.effective_us > 0
        assert any("no settings folder" in one for one in after.warnings())

    run(test)

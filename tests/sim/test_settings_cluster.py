"""Settings of three real control processes: changes spread, deletions are purged, and lost folders are restored."""

import asyncio
import uuid

import pytest
from tests.sim.settings_rig import WAIT_S, Rig, run

from ebla.control.settings import replication
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import Refused, Unreachable
from ebla.settings_store.purge import PurgeResult
from ebla.settings_store.registry import ACTOR_NAME, SETTINGS_PURGE, STATUS_NAME, node_key
from ebla.sim.disk import DiskFault
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import SETTINGS_WRITE


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


def test_write_to_a_member_that_just_started_names_the_members_that_are_down() -> None:
    async def test(rig: Rig) -> None:
        for node in rig.nodes:
            node.control.crash()
        alone = rig.nodes[0]
        connection = rig.cluster.connection(rig.world.scenario_environment("operator"), "operator", alone)
        request = SettingsWriteRequest(changes=(SettingChange("user/a", "1"),))
        answer = None
        # The slow disk holds the node back between its first answer and its log.
        with alone.control.machine.disk.inject(DiskFault(sync_ms=500)):
            alone.control.start()
            while answer is None:
                try:
                    answer = await connection.call(SETTINGS_WRITE, request, 30_000)
                except Unreachable:
                    await asyncio.sleep(0.001)
        connection.leave()
        assert answer.members == 3
        assert {one.host for one in answer.missing} == {node.host for node in rig.nodes[1:]}

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


def test_large_settings_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "MERGE_QUEUE_MAX", 2)

    async def test(rig: Rig) -> None:
        away = next(node for node in rig.nodes if node is not rig.leader())
        away.control.crash()
        taker = rig.up()[0]
        keys = [f"user/{number}" for number in range(12)]
        for key in keys:
            await rig.settings(taker).write({key: key.encode() * 8_000})
        await rig.settings(taker).write({"user/0": None})
        await rig.restart(away)
        for key in keys[1:]:
            await rig.wait_values(key, key.encode() * 8_000)
        assert await rig.settings(taker).push_to([node.host for node in rig.nodes]) == ()
        assert await rig.settings(away).pull_from([node.host for node in rig.nodes]) == ()
        assert rig.settings(away).store.entries == rig.settings(taker).store.entries
        await rig.purge_all("user/0")

    run(test)


def test_entries_of_a_removed_host() -> None:
    async def test(rig: Rig) -> None:
        removed = next(node for node in rig.nodes if node is not rig.leader())
        status, actor = node_key(removed.host, STATUS_NAME), node_key(removed.host, ACTOR_NAME)
        await rig.settings(removed).write({status: b"fine", "user/a": b"before"})
        await rig.wait_values(status, b"fine")
        leader = rig.leader()
        assert leader is not None
        with pytest.raises(Refused):
            await rig.settings(leader).write({status: b"mine now"})
        assert leader.control_process is not None
        assert leader.control_process.operations is not None
        operation = Operation(id=uuid.UUID(int=1), kind=OperationKind.REMOVE, hosts=(removed.host,))
        await leader.control_process.operations.request(operation)
        await rig.world.wait_for(lambda: removed.control.down, WAIT_S)
        rig.nodes.remove(removed)
        await rig.wait_values(actor, None)
        await rig.settings(leader).write({status: b"removed"})
        await rig.wait_values(status, b"removed")
        await rig.wait_values("user/a", b"before")
        await rig.purge_all(actor)

    run(test)

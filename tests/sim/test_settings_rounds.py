"""What must happen if something goes on in a single step of a purge round."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.sim.settings_rig import WAIT_S, Rig, run

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.member_features import why_not_in_use
from ebla.control.settings.settings_node import SettingsNode
from ebla.group0.members import MemberRole
from ebla.model.errors import Stale
from ebla.model.transaction import Revision
from ebla.settings_store.entry import encode_entries
from ebla.settings_store.purge import PurgeResult
from ebla.sim.clusters.nodes import SimNode
from ebla.version import Feature
from ebla.wire.fault_messages import FaultKind
from ebla.wire.settings_messages import PreparePurgeRequest, PurgeReport, PushTombstonesRequest


def leading(rig: Rig) -> tuple[SimNode, SettingsNode]:
    leader = rig.leader()
    assert leader is not None
    return leader, rig.settings(leader)


async def purge_with(rig: Rig, point: FaultPoint, act: Callable[[], Awaitable[None]]) -> PurgeReport:
    """Runs a round and does something after one of its steps."""
    await rig.of(0).write({"user/a": b"x"})
    await rig.wait_values("user/a", b"x")
    await rig.of(0).write({"user/a": None})
    await rig.wait_values("user/a", None)
    leader, settings = leading(rig)
    deleted_us = settings.store.entries["user/a"].timestamp_us

    def can_purge() -> bool:
        is_in_use = not why_not_in_use(settings.cluster.store, Feature.SETTINGS_PURGE)
        return is_in_use and leader.control.machine.clock.wall_us() > deleted_us

    assert await rig.world.wait_for(can_purge, WAIT_S)
    assert leader.control_process is not None
    points = leader.control_process.fault_points
    points.set(point, FaultKind.PAUSE, once=True)

    def is_waiting() -> bool:
        return any(view.waiting for view in points.points())

    async with asyncio.TaskGroup() as tasks:
        purging = tasks.create_task(rig.purge())
        assert await rig.world.wait_for(is_waiting, WAIT_S)
        await act()
        points.release(point)
    return purging.result()


def test_a_change_of_members_after_the_push_ends_the_round() -> None:
    async def test(rig: Rig) -> None:
        async def change() -> None:
            _, settings = leading(rig)
            other = next(one for one in settings.cluster.others())
            learner = msgspec.structs.replace(other, role=MemberRole.LEARNER)
            await settings.cluster.group0.running.client.change_members((learner,), None, 5_000)

        report = await purge_with(rig, FaultPoint.PURGE_PUSHED, change)
        assert report.result == PurgeResult.MEMBERS_CHANGED

    run(test)


def test_a_reset_after_the_push_ends_the_round() -> None:
    """The node has acknowledged the push with a folder that is gone."""

    async def test(rig: Rig) -> None:
        async def lose() -> None:
            lost = next(node for node in rig.nodes if node is not rig.leader())
            lost.control.crash()
            lost.control.machine.disk.put_folder(f"{lost.folder}/settings", None)
            lost.control.start()
            assert await rig.world.wait_for(lambda: lost in rig.up(), WAIT_S)
            assert await rig.world.wait_for(lambda: not rig.settings(lost).reset.in_progress, WAIT_S)

        report = await purge_with(rig, FaultPoint.PURGE_PUSHED, lose)
        assert report.result == PurgeResult.SUPERSEDED

    run(test)


def test_a_node_that_restarted_after_it_prepared_takes_no_push() -> None:
    """It may run on an older copy of its folder by now, without the time of the round."""

    async def test(rig: Rig) -> None:
        restarted = next(node for node in rig.nodes if node is not rig.leader())

        async def restart() -> None:
            restarted.control.crash()
            restarted.control.start()
            assert await rig.world.wait_for(lambda: restarted in rig.up(), WAIT_S)
            _, settings = leading(rig)
            await settings.pull_from([restarted.host])

        report = await purge_with(rig, FaultPoint.PURGE_PREPARED, restart)
        assert report.result == PurgeResult.PUSH_FAILED
        assert [problem.cause for problem in report.problems if "has not prepared" in problem.cause]
        assert (await rig.purge()).result in (PurgeResult.PURGED, PurgeResult.NOTHING_TO_PURGE)

    run(test)


def test_a_late_request_of_an_earlier_attempt_does_nothing() -> None:
    async def test(rig: Rig) -> None:
        async def nothing() -> None:
            pass

        report = await purge_with(rig, FaultPoint.PURGE_PUSHED, nothing)
        assert report.result == PurgeResult.PURGED
        _, settings = leading(rig)
        stored = settings.cluster.purge_state()
        assert stored.revision is not None
        attempt = Revision(stored.revision.history, stored.revision.index - 1)
        before = settings.store.header
        prepare = PreparePurgeRequest(
            purged_us=report.purged_us + 1, members_revision=settings.cluster.store.members_revision, attempt=attempt
        )
        push = PushTombstonesRequest(
            purged_us=report.purged_us + 1, attempt=attempt, tombstones=encode_entries(()), is_last=True
        )
        with pytest.raises(Stale):
            await settings.agent.prepare(prepare, 5_000)
        with pytest.raises(Stale):
            await settings.agent.push(push)
        assert settings.store.header == before

    run(test)

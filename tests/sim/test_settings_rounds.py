"""What must happen if something goes on in a single step of a purge round."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.sim.settings_rig import WAIT_S, Rig, run

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.member_features import why_not_in_use
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.settings.settings_node import SettingsNode
from ebla.group0.members import MemberRole
from ebla.group0.operations import Operation, OperationKind
from ebla.leadership.activities import ActivityEnded, ActivitySpec
from ebla.leadership.lease_agent import BlockedLease
from ebla.leadership.quorum import MAJORITY
from ebla.model.errors import Stale
from ebla.model.transaction import Revision
from ebla.settings_store.entry import encode_entries
from ebla.settings_store.purge import PurgeResult
from ebla.sim.clusters.nodes import SimNode
from ebla.version import Feature
from ebla.wire.fault_messages import FaultKind
from ebla.wire.settings_messages import PreparePurgeRequest, PurgeReport, PushTombstonesRequest
from ebla.wire.verbs import PREPARE_PURGE, PUSH_TOMBSTONES


def leading(rig: Rig) -> tuple[SimNode, SettingsNode]:
    leader = rig.leader()
    assert leader is not None
    return leader, rig.settings(leader)


def leadership(node: SimNode) -> LeadershipNode:
    assert node.control_process is not None
    assert node.control_process.leadership is not None
    return node.control_process.leadership


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
            leader, settings = leading(rig)
            other = next(one for one in settings.cluster.others())
            operation = Operation(
                id=uuid.UUID(int=1),
                kind=OperationKind.CHANGE_ROLES,
                hosts=(other.host,),
                roles=(MemberRole.LEARNER,),
            )
            assert leader.control_process is not None
            assert leader.control_process.operations is not None
            await leader.control_process.operations.request(operation)

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
            _, settings = leading(rig)
            attempt = settings.cluster.purge_state().revision

            def knows_the_round() -> bool:
                if restarted.control_started != restarted.control.start_count or restarted not in rig.up():
                    return False
                cluster = rig.settings(restarted).cluster
                return cluster.group0.is_running and cluster.purge_state().revision == attempt

            assert await rig.world.wait_for(knows_the_round, WAIT_S)
            await settings.pull_from([restarted.host])

        report = await purge_with(rig, FaultPoint.PURGE_PREPARED, restart)
        assert report.result == PurgeResult.PUSH_FAILED
        assert [problem.cause for problem in report.problems if "has not prepared" in problem.cause]
        assert (await rig.purge()).result in (PurgeResult.PURGED, PurgeResult.NOTHING_TO_PURGE)

    run(test)


def test_orders_of_an_activity_that_is_over_have_no_effect() -> None:
    """Their changes may have waited for others, and come to their turn after the lease has ended."""

    async def test(rig: Rig) -> None:
        node = next(node for node in rig.nodes if node is not rig.leader())

        async def order_late() -> None:
            leader, _ = leading(rig)

            async def body(handle: RunningHandle) -> RunningHandle:
                return handle

            spec = ActivitySpec(name="short", domain="test", quorum=MAJORITY, wait_ms=5_000)
            handle = await leadership(leader).activities.run(spec, body)
            settings = rig.settings(node)
            stored, before = settings.cluster.purge_state(), settings.store.header
            assert stored.revision is not None
            purged_us = stored.state.tentative_wall_us
            prepare = PreparePurgeRequest(
                purged_us=purged_us, members_revision=settings.cluster.store.members_revision, attempt=stored.revision
            )
            push = PushTombstonesRequest(
                purged_us=purged_us, attempt=stored.revision, tombstones=encode_entries(()), is_last=True
            )
            with pytest.raises(ActivityEnded):
                await settings.agent.push(push, handle, 5_000)
            with pytest.raises(ActivityEnded):
                await settings.agent.prepare(prepare, handle, 5_000)
            assert settings.store.header == before

        report = await purge_with(rig, FaultPoint.PURGE_PREPARED, order_late)
        assert report.result == PurgeResult.PURGED

    run(test)


def test_a_round_whose_leases_are_over_by_the_clock_commits_nothing() -> None:
    """As after SIGCONT, before a timer has fired."""

    async def test(rig: Rig) -> None:
        async def freeze() -> None:
            leader, _ = leading(rig)
            renewal = leadership(leader).core.renewal
            assert renewal is not None
            for worker in renewal.workers.values():
                worker.deadline_ms = leadership(leader).now_ms()

        report = await purge_with(rig, FaultPoint.PURGE_PUSHED, freeze)
        assert (report.result, report.outcome) == (PurgeResult.QUORUM_LOST, "unknown")
        _, settings = leading(rig)
        await settings.cluster.read_barrier(5_000)
        assert settings.cluster.purge_state().is_unfinished
        await rig.purge()
        assert not settings.cluster.purge_state().is_unfinished, "the next round finishes it"

    run(test)


def test_without_a_majority_of_leases_no_round_starts() -> None:
    async def test(rig: Rig) -> None:
        leader, settings = leading(rig)
        for node in rig.nodes:
            if node is not leader:
                leadership(node).core.agent.state = BlockedLease(leadership(node).now_ms() + 120_000)
        renewal = leadership(leader).core.renewal
        assert renewal is not None
        for worker in renewal.workers.values():
            if worker.host != leader.host:
                worker.deadline_ms = 1
        report = await rig.purge()
        assert (report.result, report.outcome) == (PurgeResult.NO_QUORUM, "not_applied")
        assert "already_acquired" in report.detail, "it says why"
        assert settings.cluster.purge_state().revision is None

    run(test)


def test_a_late_request_of_an_earlier_attempt_does_nothing() -> None:
    async def test(rig: Rig) -> None:
        async def nothing() -> None:
            pass

        report = await purge_with(rig, FaultPoint.PURGE_PUSHED, nothing)
        assert report.result == PurgeResult.PURGED
        leader, settings = leading(rig)
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

        async def order(handle: RunningHandle) -> None:
            with pytest.raises(Stale, match="not the current one"):
                await handle.call(leader.host, PREPARE_PURGE, prepare, 5_000)
            with pytest.raises(Stale, match="not the current one"):
                await handle.call(leader.host, PUSH_TOMBSTONES, push, 5_000)

        spec = ActivitySpec(name="late", domain="test", quorum=MAJORITY, wait_ms=5_000)
        await leadership(leader).activities.run(spec, order)
        assert settings.store.header == before

    run(test)

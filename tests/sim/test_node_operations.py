"""Leaves, removes and rebuilds in simulated clusters, step by step."""

import asyncio

from tests.sim.topology_rig import ENDED, JOINED, OUTAGE_S, TopologyRig, run_on_vnodes

from ebla.control.fault_points import FaultPoint
from ebla.group0.members import member_key
from ebla.group0.operations import OperationKind
from ebla.model.identity import RequestId
from ebla.sim.clusters.nodes import LIMITS, SimNode
from ebla.topology.commands import SubmitGlobalRequest
from ebla.topology.request_queue import unsettled_requests
from ebla.topology.snapshot import GlobalRequest
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, RequestOutcome


def is_member(rig: TopologyRig, node: SimNode) -> bool:
    store = rig.cluster.newest_store()
    assert store is not None, "a node runs"
    return store.members[member_key(node.host)].present


def test_a_node_leaves() -> None:
    async def tell(rig: TopologyRig, node: SimNode) -> None:
        request = await rig.submit(NodeRequestKind.LEAVE, node)
        assert await rig.end(node) is ENDED, rig.request_of(node)
        assert rig.outcome_of(request) is RequestOutcome.DONE
        assert not is_member(rig, node)

    run_on_vnodes(tell)


def test_a_leave_waits_for_every_node_before_it_stops_the_node() -> None:
    async def tell(rig: TopologyRig, node: SimNode) -> None:
        point = FaultPoint.LEFT_TOKEN_RING_ENTERED
        rig.stop_at(point)
        request = await rig.submit(NodeRequestKind.LEAVE, node)
        await rig.until(lambda: rig.is_stopped(point), "the node has no token any more")
        slow = next(one for one in rig.old if one is not rig.leader()).shards[0].unit
        slow.pause()
        await rig.change_schema()
        rig.release(point)
        await asyncio.sleep(OUTAGE_S)
        assert rig.outcome_of(request) is RequestOutcome.RUNNING
        assert not node.control.down
        slow.resume()
        assert await rig.end(node) is ENDED
        assert rig.outcome_of(request) is RequestOutcome.DONE

    run_on_vnodes(tell)


def test_the_leader_leaves() -> None:
    async def tell(rig: TopologyRig, _node: SimNode) -> None:
        leader = rig.leader()
        request = await rig.submit(NodeRequestKind.LEAVE, leader)
        assert await rig.end(leader) is ENDED, rig.request_of(leader)
        assert rig.outcome_of(request) is RequestOutcome.DONE
        assert not is_member(rig, leader)

    run_on_vnodes(tell)


def test_a_dead_node_is_removed() -> None:
    async def tell(rig: TopologyRig, _node: SimNode) -> None:
        dead = next(one for one in rig.old if one is not rig.leader())
        await rig.die(dead)
        request = await rig.submit(NodeRequestKind.REMOVE, dead)
        assert await rig.end(dead) is ENDED, rig.request_of(dead)
        assert rig.outcome_of(request) is RequestOutcome.DONE
        assert not is_member(rig, dead)
        newest = rig.cluster.newest()
        assert newest is not None
        assert newest.excluded_hosts == ()
        assert unsettled_requests(newest) == ()

    run_on_vnodes(tell)


def test_a_node_is_rebuilt() -> None:
    async def tell(rig: TopologyRig, node: SimNode) -> None:
        for unit in node.units():
            unit.kill()
        await asyncio.sleep(OUTAGE_S)
        rig.restart(node)
        await rig.until(lambda: node.host not in rig.leader_process()._down(), "the node is back")
        request = await rig.submit(NodeRequestKind.REBUILD, node)
        await rig.until(lambda: rig.outcome_of(request) is RequestOutcome.DONE, "the node is rebuilt")
        assert rig.request_of(node).streamed_ranges > 0
        assert await rig.end(node) is JOINED

    run_on_vnodes(tell)


def test_cdc_streams_are_repaired_after_a_leave() -> None:
    async def tell(rig: TopologyRig, node: SimNode) -> None:
        async def check_and_repair() -> GlobalRequest:
            request = GlobalRequest(
                id=RequestId(rig.world.rng.uuid()),
                kind=GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS,
                initiator=node.host,
                start_ms=1,
            )
            await rig.commit(SubmitGlobalRequest(request), lambda newest: request.id in newest.global_requests)
            await rig.until(lambda: not found(request.id).is_open, "the request ends")
            return found(request.id)

        def found(request: RequestId) -> GlobalRequest:
            newest = rig.cluster.newest()
            assert newest is not None, "a node runs"
            return newest.global_requests[request]

        ended = await check_and_repair()
        assert (ended.outcome, ended.generation) == (RequestOutcome.DONE, None)
        await rig.submit(NodeRequestKind.LEAVE, node)
        ended = await check_and_repair()
        assert ended.outcome is RequestOutcome.DONE
        newest = rig.cluster.newest()
        assert newest is not None
        assert ended.generation is not None
        assert newest.cdc_generations[ended.generation].timestamp_ms is not None
        ended = await check_and_repair()
        assert (ended.outcome, ended.generation) == (RequestOutcome.DONE, None)
        assert await rig.end(node) is ENDED

    run_on_vnodes(tell)


def test_a_removed_node_that_returns_is_refused_and_ends() -> None:
    async def tell(rig: TopologyRig, _node: SimNode) -> None:
        removed = next(one for one in rig.old if one is not rig.leader())
        for unit in removed.units():
            unit.pause()
        await rig.until(lambda: removed.host in rig.leader_process()._down(), "the node is down")
        rig.dead[removed.host] = None
        await rig.submit(NodeRequestKind.REMOVE, removed)
        await rig.until(lambda: rig.cluster.state_of(removed) is ENDED, "the node is removed")
        process = removed.control_process
        for unit in removed.units():
            unit.resume()
        await asyncio.sleep(LIMITS.feed_silence_ms / 1000)
        assert removed.control.down
        assert process is not None
        assert process.gave_up is not None
        assert "was removed from the cluster" in process.gave_up
        assert not process.was_refused
        assert all(shard.unit.down or not shard.process or not shard.process.serves() for shard in removed.shards)
        assert await rig.end(removed) is ENDED

    run_on_vnodes(tell)


def test_a_dead_node_is_replaced() -> None:
    async def tell(rig: TopologyRig, _node: SimNode) -> None:
        dead = next(one for one in rig.old if one is not rig.leader())
        await rig.die(dead)
        newest = rig.cluster.newest()
        assert newest is not None
        tokens = newest.node(dead.host).tokens
        new = await rig.join(dead)
        await rig.until(lambda: rig.cluster.state_of(new) is JOINED, "the node is replaced")
        assert await rig.end(dead) is ENDED
        newest = rig.cluster.newest()
        assert newest is not None
        assert newest.node(new.host).tokens == tokens
        assert newest.excluded_hosts == ()
        assert unsettled_requests(newest) == ()
        assert not is_member(rig, dead)

    run_on_vnodes(tell)


def test_a_replace_that_is_aborted_leaves_the_dead_node_as_it_was() -> None:
    async def tell(rig: TopologyRig, _node: SimNode) -> None:
        dead = next(one for one in rig.old if one is not rig.leader())
        await rig.die(dead)
        point = FaultPoint.WRITE_BOTH_READ_OLD_AFTER_BARRIER
        rig.stop_at(point)
        new = await rig.join(dead)
        await rig.until(lambda: rig.is_stopped(point), "the ranges are about to be streamed")
        assert not await rig.abort(new)
        rig.release(point)
        await rig.until(lambda: rig.cluster.state_of(new) is ENDED, "the replace is rolled back")
        del rig.dead[dead.host]
        rig.restart(dead)
        assert await rig.end(new) is ENDED
        newest = rig.cluster.newest()
        assert newest is not None
        assert newest.node(dead.host).state is JOINED
        assert newest.excluded_hosts == ()
        assert is_member(rig, dead)

    run_on_vnodes(tell)


def test_an_excluded_node_that_becomes_a_replica_is_incomplete_and_can_only_be_replaced() -> None:
    """INV-NODE-23."""

    async def tell(rig: TopologyRig, _node: SimNode) -> None:
        first, second = [one for one in rig.old if one is not rig.leader()]
        await rig.die(first)
        await rig.operate(OperationKind.EXCLUDE, first, is_forced=True)
        await rig.lose_vote(first)
        await rig.die(second)
        request = await rig.submit(NodeRequestKind.REMOVE, second)
        await rig.until(lambda: rig.outcome_of(request) is RequestOutcome.DONE, "the second one is removed")
        rig.cluster.retire(second)
        newest = rig.cluster.newest()
        assert newest is not None
        assert newest.node(first.host).is_incomplete
        assert "lacks rows" in await rig.refusal(OperationKind.INCLUDE, first)
        new = await rig.join(first)
        await rig.until(lambda: rig.cluster.state_of(new) is JOINED, "the first one is replaced")
        assert await rig.end(first) is ENDED
        newest = rig.cluster.newest()
        assert newest is not None
        assert newest.excluded_hosts == ()

    run_on_vnodes(tell)

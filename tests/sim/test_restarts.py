"""Restarts, lost stores and copies of folders at a few seeds: INV-START-1 to 4."""

import pytest

from ebla.control.group0.node import Group0Node
from ebla.group0.start_record import StartRecord, start_key
from ebla.model.identity import ClusterId, StartId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import PutKey, Transaction
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.world import World


@pytest.mark.parametrize("seed", [1, 4])
def test_what_must_not_run_does_not_serve_and_the_rest_restarts_by_itself(seed: int) -> None:
    outcome = run_scenario(find_scenario("restarts"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_a_start_that_another_process_overtakes_is_never_confirmed() -> None:
    """Both read the same record, and the other one commits first. The answer to the commit does not show it."""

    async def run(world: World) -> None:
        cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
        control = cluster.add_node(has_children=False).control
        control.start()
        await cluster.wait_all_normal()
        control.kill()
        control.start()
        group0 = await _begun_group0(world, cluster)
        client, host = group0.running.client, cluster.nodes[0].host
        confirm = client.confirm_start

        async def overtaken(transaction: Transaction, deadline_ms: int) -> None:
            mark = group0.join_state.mark
            stores = tuple(one.store for one in mark.stores)
            other = StartRecord(incarnation=mark.incarnation, start=StartId(world.rng.uuid()), stores=stores)
            key = start_key(host)
            await confirm(Transaction((), (PutKey(key, encode_stored(StoredValue(other))),)), deadline_ms)
            await confirm(transaction, deadline_ms)

        client.confirm_start = overtaken  # type: ignore[method-assign]  # the other process, in the one bad moment
        assert await world.wait_for(lambda: control.down, 20.0), "it goes on, and so does the other process"
        assert not group0.confirmed.is_set(), "it served for a moment"

    World(1, 60.0).run(run)


async def _begun_group0(world: World, cluster: SimCluster) -> Group0Node:
    """Of a control process that has opened its log, and has not yet read its record."""

    def group0() -> Group0Node | None:
        process = cluster.nodes[0].control_process
        is_new = cluster.nodes[0].control_started == cluster.nodes[0].control.start_count
        return process._group0 if process is not None and is_new else None

    def has_begun() -> bool:
        begun = group0()
        return begun is not None and begun.is_running

    assert await world.wait_for(has_begun, 20.0)
    begun = group0()
    assert begun is not None
    assert not begun.confirmed.is_set()
    return begun

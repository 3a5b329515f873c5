"""Tablets and ranges are transferred to a replica that missed writes, while a driver keeps writing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.cluster.conftest import eventually
from tests.pipeline.clusters import PipelineCluster, Replicas, deleted, new_keyspace, run_command, some_rows
from tests.pipeline.driver_load import ConsistencyLevel, DriverClient, DriverLoad
from tests.pipeline.served_nodes import NODES

from ebla.model.token import TOKEN_MIN, Token, TokenRange

TABLETS = 4
OLD_US, NEW_US = 1_000, 2_000
AWAY = 1
"""The node that was down."""
SMALL_BYTES = 40


@dataclass(frozen=True, slots=True)
class Missed:
    cluster: PipelineCluster
    on_tablets: Replicas
    on_vnodes: Replicas

    @property
    def load(self) -> DriverLoad:
        addresses = [self.cluster.address(number) for number in range(NODES)]
        return DriverLoad(addresses, self.on_tablets, self.on_vnodes)

    def check_missing(self) -> None:
        """Read from the replica itself, before any read repair."""
        for table in (self.on_tablets, self.on_vnodes):
            assert table.expected[AWAY] != table.expected[0]
            table.check(AWAY)


@pytest.fixture(scope="module")
def missed(pipelined: PipelineCluster) -> Iterator[Missed]:
    """Rows were overwritten, deleted and added while one of three replicas was down."""
    new_keyspace(pipelined, "moves_t", tablets=TABLETS)
    new_keyspace(pipelined, "moves_v", tablets=0)
    tables = Replicas(pipelined, "moves_t", "t"), Replicas(pipelined, "moves_v", "t")
    addresses = [pipelined.address(number) for number in range(NODES)]
    everywhere = some_rows(range(200), OLD_US, 1, SMALL_BYTES)
    later = some_rows([*range(60), *range(200, 240)], NEW_US, 2, SMALL_BYTES) | deleted(range(60, 90), NEW_US)
    with DriverClient(addresses) as client:
        for table in tables:
            client.write(table.name, everywhere)
            for number in range(NODES):
                table.note(number, everywhere)
    if pipelined.leader == AWAY:
        pipelined.lead(0)
    pipelined.stop_node(AWAY)
    others = [number for number in range(NODES) if number != AWAY]
    with DriverClient([addresses[number] for number in others], ConsistencyLevel.QUORUM) as client:
        for table in tables:
            client.write(table.name, later)
            for number in others:
                table.note(number, later)
    pipelined.start_node(AWAY)
    pipelined.wait_pipeline()
    yield Missed(pipelined, *tables)
    pipelined.wait_clean()


def test_a_tablet_is_copied_by_links(missed: Missed) -> None:
    missed.check_missing()
    table = missed.on_tablets
    with missed.load as load:
        eventually(lambda: load.acknowledged > 5, "the load runs")
        job = missed.cluster.done(table.copy(0, AWAY))
        before = load.acknowledged
        eventually(lambda: load.acknowledged > before + 5, "the load goes on")
    assert job.result is not None
    assert (job.result.short_cut, job.runs) == (True, 1)
    table.brought([0], AWAY, table.tablet_range(0))
    table.check(*range(NODES))


def test_a_tablet_is_copied_over_flight(missed: Missed) -> None:
    cluster, table = missed.cluster, missed.on_tablets
    with missed.load as load:
        eventually(lambda: load.acknowledged > 5, "the load runs")
        places = ("--from", cluster.address(0), "--to", cluster.address(AWAY))
        ended = run_command(cluster, "copy-tablet", table.name, "1", *places, "--no-short-cut", "--json")
    assert ended.returncode == 0, ended
    result = json.loads(ended.stdout)["result"]
    assert not result["short_cut"]
    assert result["bytes_moved"] > 0
    table.brought([0], AWAY, table.tablet_range(1))
    table.check(*range(NODES))


def test_rows_of_a_tablet_are_streamed(missed: Missed) -> None:
    table = missed.on_tablets
    within = table.tablet_range(2)
    with missed.load as load:
        eventually(lambda: load.acknowledged > 5, "the load runs")
        job = missed.cluster.done(table.stream([0], AWAY, within))
    assert job.result is not None
    assert job.result.rows > 0
    table.brought([0], AWAY, within)
    table.check(*range(NODES))


def test_ranges_of_vnodes_are_rebuilt_from_several_replicas(missed: Missed) -> None:
    """Each source has rows that the other lacks."""
    table = missed.on_vnodes
    within = TokenRange(Token(TOKEN_MIN), Token(0))
    table.write(0, some_rows(range(300, 310), NEW_US, 3, SMALL_BYTES))
    table.write(2, some_rows(range(305, 320), NEW_US + 1, 4, SMALL_BYTES) | deleted(range(5), NEW_US + 1))
    with missed.load as load:
        eventually(lambda: load.acknowledged > 5, "the load runs")
        job = missed.cluster.done(table.stream([0, 2], AWAY, within))
    assert job.result is not None
    assert job.result.rows > 0
    table.brought([0, 2], AWAY, within)
    table.check(*range(NODES))


@pytest.mark.parametrize("placed", ["tablets", "vnodes"])
def test_what_differs_is_found_and_mended(missed: Missed, placed: str) -> None:
    cluster = missed.cluster
    table = missed.on_tablets if placed == "tablets" else missed.on_vnodes
    assert table.expected[AWAY] != table.expected[0]
    with missed.load as load:
        eventually(lambda: load.acknowledged > 5, "the load runs")
        if placed == "tablets":
            check_found(cluster, table)
        healed = cluster.compare(table.table, heal=True)
        assert healed.result is not None
        assert healed.result.healed_rows > 0
        assert healed.result.differences_total == 0
    for number in range(NODES):
        table.brought([other for other in range(NODES) if other != number], number)
    table.check(*range(NODES))
    again = run_command(cluster, "compare", table.name)
    assert again.returncode == 0, again


def check_found(cluster: PipelineCluster, table: Replicas) -> None:
    found = run_command(cluster, "compare", table.name, "--json")
    assert found.returncode == 1, found
    result = json.loads(found.stdout)["result"]
    assert result["differences_total"] > 0
    hosts = {host for one in result["differences"] for host, _, _ in one["replicas"]}
    assert hosts == {str(cluster.host(number)) for number in range(NODES)}

"""Schema changes: attempts, lost answers, and nodes that do not confirm."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.control.commit_rig import CommitRig
from tests.unit.topology.world import Coordinator, host

from ebla.control.topology import schema_plan
from ebla.control.topology.schema_service import SchemaService
from ebla.group0.commands import CommandAnswer
from ebla.model.cql_types import parse_type
from ebla.model.errors import AlreadyExists, DeadlineExceeded, InvalidRequest, Outcome, Refused, Unavailable
from ebla.model.identity import HostId
from ebla.model.schema import Column, ColumnKind
from ebla.model.transaction import Transaction
from ebla.sim.world import World as SimWorld
from ebla.topology.commands import SetIgnoredNodes
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.schema_messages import (
    AlterKeyspaceRequest,
    CreateKeyspaceRequest,
    CreateTableRequest,
    DropKeyspaceRequest,
    DropTableRequest,
)

KEYSPACE = Keyspace(name="ks", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 2),)), on_tablets=True)
COLUMNS = (Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),)
TABLE = CreateTableRequest(keyspace="ks", name="t", columns=COLUMNS)


class Rig(CommitRig):
    def __init__(self) -> None:
        super().__init__()
        self.schema = SchemaService(self.deps("schema"))


def story(play: Callable[[Rig], Awaitable[None]]) -> None:
    """In virtual time."""

    async def run(_: SimWorld) -> None:
        await play(Rig())

    SimWorld(1, 60.0).run(run)


def with_keyspace(play: Callable[[Rig], Awaitable[None]]) -> None:
    async def run(rig: Rig) -> None:
        await rig.schema.change(CreateKeyspaceRequest(KEYSPACE), 1_000)
        await play(rig)

    story(run)


pytestmark = runs_in(with_keyspace)


async def test_a_change_returns_when_every_node_has_its_version(rig: Rig, /) -> None:
    answer = await rig.schema.change(TABLE, 1_000)
    assert answer.changed
    assert answer.table in rig.snapshot.tables
    assert rig.confirmed == {host(number): answer.version for number in (1, 2, 3)}
    assert answer.version == rig.snapshot.version


async def test_what_is_so_already_is_told_to_every_node_too(rig: Rig, /) -> None:
    first = await rig.schema.change(TABLE, 1_000)
    rig.confirmed.clear()
    again = await rig.schema.change(
        CreateTableRequest(keyspace="ks", name="t", columns=COLUMNS, if_not_exists=True), 1_000
    )
    assert (again.changed, again.table) == (False, first.table)
    assert len(rig.confirmed) == 3
    assert rig.drains == {False}


async def test_who_is_down_is_named_and_not_waited_for(rig: Rig, /) -> None:
    rig.down = (host(2),)
    assert (await rig.schema.change(TABLE, 1_000)).unreached == (host(2),)


async def test_who_goes_down_while_it_is_waited_for_is_named(rig: Rig, /) -> None:
    rig.silent = (host(3),)
    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(rig.schema.change(TABLE, 20_000))
        await asyncio.sleep(1)
        assert not changing.done()
        rig.down = (host(3),)
    assert changing.result().unreached == (host(3),)


async def test_a_node_that_is_up_and_does_not_confirm_makes_an_error_that_says_the_change_is_made(rig: Rig, /) -> None:
    rig.silent = (host(3),)
    with pytest.raises(DeadlineExceeded, match=r"the schema is changed .*has not reported") as caught:
        await rig.schema.change(TABLE, 5_000)
    assert str(host(3)) in caught.value.message
    assert str(host(2)) not in caught.value.message
    assert rig.snapshot.tables


async def test_what_came_first_is_planned_on_anew(rig: Rig, /) -> None:
    rig.script = [rig.overtaken, rig.overtaken]
    assert (await rig.schema.change(TABLE, 1_000)).changed
    assert rig.commits == 4
    assert len(rig.snapshot.tables) == 1


async def test_always_overtaken_it_gives_up_and_nothing_is_made(rig: Rig, /) -> None:
    rig.script = [rig.overtaken] * 1_000
    with pytest.raises(Refused, match="came first"):
        await rig.schema.change(TABLE, 500)
    assert not rig.snapshot.tables


async def test_a_table_created_by_somebody_else_meanwhile_exists(rig: Rig, /) -> None:
    async def other_first(transaction: Transaction) -> CommandAnswer:
        rig.world.create_table(2, 2)
        return await rig.commit(transaction)

    rig.script = [other_first]
    with pytest.raises(AlreadyExists):
        await rig.schema.change(TABLE, 1_000)
    assert len(rig.snapshot.tables) == 1


async def test_a_node_that_lags_asks_before_it_says_what_there_is(rig: Rig, /) -> None:
    rig.lagging = rig.snapshot
    rig.world.create_table(2, 2)
    answer = await rig.schema.change(DropTableRequest("ks", "t"), 1_000)
    assert answer.changed


@pytest.mark.parametrize("way", ["commit_unanswered", "commit_forgotten"])
async def test_a_commit_without_an_answer_is_found_by_reading(rig: Rig, /, way: str) -> None:
    rig.script = [getattr(rig, way)]
    answer = await rig.schema.change(TABLE, 1_000)
    assert answer.changed
    assert list(rig.snapshot.tables) == [answer.table]
    assert rig.commits == 2, "the keyspace and the table, once"


async def test_a_commit_that_may_yet_come_is_not_tried_again(rig: Rig, /) -> None:
    rig.script = [rig.lose]
    with pytest.raises(DeadlineExceeded, match="not known whether") as caught:
        await rig.schema.change(TABLE, 1_000)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert rig.commits == 2


async def test_without_a_quorum_to_read_from_an_unanswered_commit_stays_unknown(rig: Rig, /) -> None:
    async def then_alone(transaction: Transaction) -> CommandAnswer:
        rig.quorum = False
        return await rig.commit_unanswered(transaction)

    rig.script = [then_alone]
    with pytest.raises(DeadlineExceeded, match="not known whether"):
        await rig.schema.change(TABLE, 1_000)


async def test_what_was_surely_not_applied_says_so(rig: Rig, /) -> None:
    rig.script = [rig.refuse]
    with pytest.raises(Unavailable):
        await rig.schema.change(TABLE, 1_000)
    rig.quorum = False
    with pytest.raises(Unavailable):
        await rig.schema.change(TABLE, 1_000)
    assert not rig.snapshot.tables


async def test_a_keyspace_dropped_by_halves_is_not_called_untouched(
    rig: Rig, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await rig.schema.change(CreateTableRequest(keyspace="ks", name=name, columns=COLUMNS), 1_000)
    monkeypatch.setattr(schema_plan, "KEYS_PER_COMMIT_MAX", 4)
    rig.script = [rig.commit, rig.refuse]
    with pytest.raises(DeadlineExceeded, match="a part of the tables was dropped") as caught:
        await rig.schema.change(DropKeyspaceRequest("ks"), 1_000)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(rig.snapshot.tables) == 2
    answer = await rig.schema.change(DropKeyspaceRequest("ks"), 1_000)
    assert answer.changed
    assert not rig.snapshot.keyspaces


FOUR = CreateKeyspaceRequest(
    Keyspace(name="four", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 4),)), on_tablets=True)
)


async def test_a_request_that_will_soon_be_possible_waits(rig: Rig, /) -> None:
    rig.world.ask_to_join(rig.world.node(4))
    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(rig.schema.change(FOUR, 10_000))
        await asyncio.sleep(1)
        assert not changing.done()
        Coordinator(rig.world).settle()
    assert changing.result().changed


async def test_a_request_that_waited_too_long_says_what_for(rig: Rig, /) -> None:
    rig.world.ask_to_join(rig.world.node(4))
    with pytest.raises(InvalidRequest, match="which has 3"):
        await rig.schema.change(FOUR, 1_000)


async def test_a_refusal_of_the_topology_is_passed_on(rig: Rig, /) -> None:
    with pytest.raises(InvalidRequest, match=r"no table ks\.t"):
        await rig.schema.change(DropTableRequest("ks", "t"), 1_000)
    assert rig.commits == 1


# -- replication of a keyspace on vnodes -------------------------------------------------------------------------------


def on_vnodes(factor: int) -> Keyspace:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    return Keyspace(name="ring", replication=replication, on_tablets=False)


def with_vnodes(play: Callable[[Rig], Awaitable[None]]) -> None:
    async def run(rig: Rig) -> None:
        await rig.schema.change(CreateKeyspaceRequest(on_vnodes(1)), 1_000)
        rig.confirmed.clear()
        rig.drains.clear()
        await play(rig)

    story(run)


@runs_in(with_vnodes)
async def test_ranges_change_hands_only_after_every_node_has_followed(rig: Rig, /) -> None:
    rig.silent = (host(3),)
    before = rig.snapshot.version
    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(rig.schema.change(AlterKeyspaceRequest(on_vnodes(2)), 20_000))
        await asyncio.sleep(2)
        assert rig.confirmed == {host(1): before, host(2): before}
        assert rig.drains == {True}
        assert rig.snapshot.version == before
        rig.silent = ()
    assert changing.result().changed
    assert rig.snapshot.keyspaces["ring"] == on_vnodes(2)


@runs_in(with_vnodes)
@pytest.mark.parametrize("down", [(), (host(3),)])
async def test_a_node_that_does_not_follow_is_named_and_nothing_is_changed(
    rig: Rig, /, down: tuple[HostId, ...]
) -> None:
    rig.silent, rig.down = (host(3),), down
    with pytest.raises(Unavailable, match=r"the replication is unchanged.*shard-0 has not reported") as caught:
        await rig.schema.change(AlterKeyspaceRequest(on_vnodes(2)), 8_000)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    addresses = {number: rig.snapshot.node(host(number)).address for number in (1, 2, 3)}
    assert addresses[3] in caught.value.message
    assert addresses[2] not in caught.value.message
    assert rig.snapshot.keyspaces["ring"] == on_vnodes(1)


@runs_in(with_vnodes)
async def test_a_node_that_is_excluded_is_not_waited_for(rig: Rig, /) -> None:
    rig.world.do(SetIgnoredNodes((host(3),)))
    rig.silent = rig.down = (host(3),)
    assert (await rig.schema.change(AlterKeyspaceRequest(on_vnodes(2)), 20_000)).changed


@runs_in(with_vnodes)
async def test_what_gives_no_range_needs_no_barrier(rig: Rig, /) -> None:
    altered = msgspec.structs.replace(on_vnodes(1), durable_writes=False)
    assert (await rig.schema.change(AlterKeyspaceRequest(altered), 20_000)).changed
    assert rig.drains == {False}

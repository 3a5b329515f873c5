"""Calls at a broker: their bounds and errors; describing tables and opening reads."""

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.broker.broker_rig import Rig, raises, with_rig
from tests.unit.pipeline.jobs_rig import a_snapshot, with_fields
from tests.unit.topology.small_cluster import TABLE, host

from ebla.broker.read_broker import is_cdc_enabled
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import (
    DeadlineExceeded,
    EblaError,
    NotFound,
    Outcome,
    Overloaded,
    Stale,
    TooFewReplicas,
    Unavailable,
    Unreachable,
)
from ebla.model.identity import HostId
from ebla.model.schema import TableOptions, decode_schema
from ebla.model.token import Token, TokenRange
from ebla.options import NodeLimits
from ebla.topology.frozen_map import FrozenMap
from ebla.wire.frames import encode
from ebla.wire.table_calls import (
    CLOSE_READ,
    DESCRIBE_TABLE,
    OPEN_READ,
    OPEN_WRITE,
    CallAnswer,
    CallRequest,
    CloseReadRequest,
    CloseTableReadRequest,
    DescribeTableRequest,
    OpenReadRequest,
    OpenTableReadRequest,
    ReadId,
    StackSizeEstimate,
)

pytestmark = runs_in(with_rig)

READ = ReadId(uuid.UUID(int=5))


def opening(level: Level = Level.QUORUM) -> OpenReadRequest:
    return OpenReadRequest(read=READ, table=TABLE, level=level)


def failure_of(data: bytes) -> Any:
    return msgspec.msgpack.decode(data, type=CallAnswer).failure


# ---- calls


async def test_what_cannot_be_read_is_told(rig: Rig, /) -> None:
    for payload in (b"", b"\xc1", encode(CallRequest(1_000, b"\x01")), encode(CallRequest(0, b""))):
        failure = failure_of(await rig.broker.call("open_read", payload))
        assert (failure.error, failure.outcome) == ("invalid_request", Outcome.NOT_APPLIED)


async def test_the_class_the_outcome_and_the_advice_come_along(rig: Rig, /) -> None:
    rig.cluster.hooks["open_table_read"] = lambda _where, _request: raises(Unreachable("connection refused"))
    payload = encode(CallRequest(1_000, encode(opening())))
    failure = failure_of(await rig.broker.call("open_read", payload))
    assert failure.error == "too_few_replicas"
    assert failure.outcome is Outcome.NOT_APPLIED
    assert "connection refused" in failure.message
    assert "lower consistency level" in failure.advice


@pytest.mark.parametrize("error", [Unavailable("no read barrier within 9900 ms"), DeadlineExceeded("no answer")])
async def test_without_a_majority_it_is_told_who_is_down_and_what_to_do(rig: Rig, /, error: EblaError) -> None:
    rig.cluster.hooks["read_barrier"] = lambda _where, _request: raises(error)
    with pytest.raises(Unavailable, match="none is considered down") as unknown:
        await rig.call(OPEN_READ, opening())
    assert error.message in unknown.value.message
    rig.cluster.view.down = frozenset((host(2), host(3)))
    for ask in (lambda: rig.call(OPEN_READ, opening()), lambda: rig.call(OPEN_WRITE, rig.opening())):
        with pytest.raises(Unavailable, match="more than half of its nodes") as refused:
            await ask()
        assert all(f"({down})" in refused.value.message for down in (host(2), host(3)))
        assert str(host(1)) not in refused.value.message
        assert "ebla status" in refused.value.advice
        assert refused.value.outcome is Outcome.NOT_APPLIED


@runs_in(with_rig, node=NodeLimits(table_calls_max=2))
async def test_no_more_than_so_many_at_once(rig: Rig, /) -> None:
    release = asyncio.Event()

    async def slow() -> Any:
        await release.wait()
        raise Unreachable("late")

    rig.cluster.hooks["open_table_read"] = lambda _where, _request: slow()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(_ignored(rig))
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="2 calls of jobs run"):
            await rig.call(OPEN_READ, opening())
        release.set()
    assert rig.broker.running == 0
    rig.cluster.hooks.clear()
    assert (await rig.call(OPEN_READ, opening())).pieces


async def _ignored(rig: Rig) -> None:
    with pytest.raises(TooFewReplicas):
        await rig.call(OPEN_READ, opening())


@pytest.mark.parametrize(
    ("asked_ms", "node"), [(1_500, NodeLimits()), (9_000_000, NodeLimits(table_call_ms_max=1_500))]
)
def test_a_call_ends_in_the_time_it_names_or_the_node_allows(asked_ms: int, node: NodeLimits) -> None:
    async def story(rig: Rig) -> None:
        async def never() -> Any:
            await asyncio.Event().wait()

        rig.cluster.hooks["open_table_read"] = lambda _where, _request: never()
        began = asyncio.get_running_loop().time()
        with pytest.raises(TooFewReplicas):
            await rig.call(OPEN_READ, opening(), asked_ms)
        assert asyncio.get_running_loop().time() - began < 4

        rig.cluster.hooks["read_barrier"] = lambda _where, _request: never()
        with pytest.raises(DeadlineExceeded, match="within 1500 ms"):
            await rig.call(OPEN_READ, opening(), asked_ms)

    with_rig(story, node=node)


# ---- tables


async def test_a_table_is_described(rig: Rig, /) -> None:
    found = await rig.call(DESCRIBE_TABLE, DescribeTableRequest("ks", "t"))
    assert (found.schema.id, found.authority, found.is_cdc_enabled) == (TABLE, b"PEM", False)
    assert rig.cluster.names() == [], "from what the shard knows"
    with pytest.raises(NotFound, match="no table 'x'"):
        await rig.call(DESCRIBE_TABLE, DescribeTableRequest("ks", "x"))
    with pytest.raises(NotFound, match="no keyspace 'x'"):
        await rig.call(DESCRIBE_TABLE, DescribeTableRequest("x", "t"))
    assert rig.cluster.names() == ["read_barrier"] * 2, "it may be new"


@pytest.mark.parametrize(
    ("text", "captured"),
    [("{'enabled': 'true'}", True), ("{'preimage': 'false', 'enabled':'TRUE'}", True), ("{'enabled': 'false'}", False)],
)
def test_what_the_option_cdc_says(text: str, captured: bool) -> None:
    table = a_snapshot().tables[TABLE]
    schema = decode_schema(table.definition)
    options = TableOptions(others=(("caching", "{'enabled': 'true'}"), ("cdc", text)))
    assert is_cdc_enabled(msgspec.structs.replace(schema, options=options)) is captured
    assert not is_cdc_enabled(schema)


# ---- reads


async def test_every_node_that_has_a_copy_gives_a_ticket(rig: Rig, /) -> None:
    rig.cluster.stacks = (StackSizeEstimate(rig_range(rig, 0), 5_000, 50),)
    plan = await rig.call(OPEN_READ, opening())
    assert [source.host for source in plan.sources] == [host(number) for number in (1, 2, 3, 4)]
    assert (len(plan.pieces), plan.pieces[0].size_bytes, plan.pieces[0].rows) == (4, 5_000, 50)
    assert {piece.needed for piece in plan.pieces} == {2}
    assert rig.cluster.names()[0] == "read_barrier", "writes acknowledged before are in"
    (_, first), *_ = rig.cluster.of(OpenTableReadRequest)
    assert (first.read, first.version) == (READ, rig.cluster.view.current.version)
    assert plan.authority == b"PEM"
    await rig.call(CLOSE_READ, CloseReadRequest(READ, TABLE))
    assert len(rig.cluster.of(CloseTableReadRequest)) == 4


def rig_range(rig: Rig, number: int) -> TokenRange:
    tablets = rig.cluster.view.current.snapshot.tablets[TABLE]
    return TokenRange(Token(tablets.after_token(number)), Token(tablets.last_token(number)))


async def test_who_does_not_answer_is_done_without_after_a_while(rig: Rig, /) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    rig.cluster.hooks["open_table_read"] = lambda where, _request: never() if where == host(2) else None
    began = asyncio.get_running_loop().time()
    plan = await rig.call(OPEN_READ, opening())
    assert host(2) not in [source.host for source in plan.sources]
    assert asyncio.get_running_loop().time() - began < 5


async def test_who_is_down_is_not_asked_and_too_few_are_told(rig: Rig, /) -> None:
    rig.cluster.view.down = frozenset((host(2),))
    plan = await rig.call(OPEN_READ, opening())
    assert len(plan.sources) == 3
    assert host(2) not in [where for where, _ in rig.cluster.of(OpenTableReadRequest)]
    with pytest.raises(TooFewReplicas, match="ALL needs 3 replicas"):
        await rig.call(OPEN_READ, opening(Level.ALL))


async def test_a_read_is_planned_anew_where_nodes_know_a_newer_topology(rig: Rig, /) -> None:
    before = rig.cluster.view.current.version

    def stale(where: HostId, request: OpenTableReadRequest) -> Any:
        if request.version == before and where in (host(2), host(3)):
            if where == host(2):
                asyncio.get_running_loop().call_later(0.1, rig.cluster.change)
            return raises(Stale("there is a newer one"))
        return None

    rig.cluster.hooks["open_table_read"] = stale
    plan = await rig.call(OPEN_READ, opening())
    assert plan.version == before + 1
    assert len(plan.sources) == 4


@runs_in(with_rig, with_fields(a_snapshot(), tables=FrozenMap(), tablets=FrozenMap()))
async def test_a_table_that_is_not_there_is_told(rig: Rig, /) -> None:
    with pytest.raises(NotFound):
        await rig.call(OPEN_READ, opening())
    await rig.call(CLOSE_READ, CloseReadRequest(READ, TABLE))

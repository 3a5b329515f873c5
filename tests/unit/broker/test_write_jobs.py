"""Write jobs at a broker: opened, committed at a level, overtaken, given up."""

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.broker.broker_rig import Rig, committing, raises, staged, with_rig
from tests.unit.pipeline.job_plans_rig import VNODES, WORLD
from tests.unit.pipeline.jobs_rig import LoopClock, a_snapshot, with_fields
from tests.unit.topology.small_cluster import TABLE, host, replica

from ebla.broker.broker_deps import BrokerLimits
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import (
    Corruption,
    DeadlineExceeded,
    DiskFull,
    EblaError,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    Refused,
    Stale,
    TooFewReplicas,
    Unavailable,
    Unreachable,
    WriteFailed,
    WriteTimeout,
)
from ebla.model.identity import AttemptId, HostId, TableId, TopologyVersion
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.token import TokenRange
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.topology.snapshot import Snapshot
from ebla.topology.tablet_map import tablet_map
from ebla.wire.table_calls import (
    ABORT_WRITE,
    COMMIT_WRITE,
    OPEN_WRITE,
    AbortWriteRequest,
    CommitWriteRequest,
    StagedRanges,
    StagedRun,
    StagingPlan,
)
from ebla.wire.transfer_messages import AdoptRequest, OpenStagingRequest, SealRequest

pytestmark = runs_in(with_rig)

QUICK = BrokerLimits(stragglers_ms=1_000, patience_ms=3_000, open_stragglers_ms=500)
FEW_JOBS = NodeLimits(write_jobs_max=3, table_write_jobs_max=2)


def at(*hosts: int) -> tuple[HostId, ...]:
    return tuple(host(number) for number in hosts)


def failing_at(hosts: tuple[HostId, ...], error: EblaError) -> Any:
    return lambda where, _request: raises(error) if where in hosts else None


# ---- opening


async def test_a_job_gets_a_place_at_every_replica_and_one_timestamp(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    assert (plan.state, len(plan.targets), len(plan.routes)) == (WriteJobState.OPEN, 12, 4)
    assert {len(route.targets) for route in plan.routes} == {3}
    assert plan.timestamp_us == rig.record().timestamp_us
    again = await rig.call(OPEN_WRITE, asked)
    assert (again.timestamp_us, again.targets) == (plan.timestamp_us, plan.targets)
    assert rig.cluster.sessions == [asked.session]


async def test_a_second_run_closes_the_first_before_it_has_a_session(rig: Rig, /) -> None:
    """INV-BULKW-2, INV-BULKW-3."""
    first, second = rig.opening(), rig.opening()
    before = await rig.call(OPEN_WRITE, first)
    await asyncio.sleep(1)
    rig.cluster.asked.clear()
    after = await rig.call(OPEN_WRITE, second)
    assert after.timestamp_us == before.timestamp_us
    names = [name for name in rig.cluster.names() if name in ("group0_execute", "close_session", "open_session")]
    assert names == ["group0_execute", "close_session", "group0_execute", "open_session"]
    assert rig.cluster.sessions == [second.session]
    with pytest.raises(Stale, match="taken over; no row of the job is visible"):
        await rig.call(COMMIT_WRITE, committing(first, before))
    with pytest.raises(Stale, match="another run"):
        await rig.call(OPEN_WRITE, first)


async def test_nodes_that_are_down_are_left_out_if_the_level_allows(rig: Rig, /) -> None:
    rig.cluster.view.down = frozenset(at(4))
    plan = await rig.call(OPEN_WRITE, rig.opening())
    assert {one.host for one in plan.targets} == set(at(1, 2, 3))
    with pytest.raises(TooFewReplicas, match=r"ALL needs 3 .* nothing was written"):
        await rig.call(OPEN_WRITE, rig.opening("all", Level.ALL))
    assert len(rig.cluster.sessions) == 1, "nothing was begun"


async def test_a_job_gets_no_timestamp_from_a_clock_that_is_wrong(rig: Rig, /) -> None:
    timestamps = rig.broker._deps.timestamps
    timestamps.set_clock_ahead(DEFAULT_LIMITS.timestamp_ahead_max_ms + 1)
    with pytest.raises(Unavailable, match="ahead of the clocks of most nodes"):
        await rig.call(OPEN_WRITE, rig.opening())
    assert rig.cluster.sessions == []
    timestamps.set_clock_ahead(0)
    await rig.call(OPEN_WRITE, rig.opening())


async def test_a_job_whose_timestamp_came_from_a_wrong_clock_does_not_go_on(
    rig: Rig, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    set_back_us = plan.timestamp_us - DEFAULT_LIMITS.timestamp_ahead_max_ms * 1000 - 1
    monkeypatch.setattr(LoopClock, "wall_us", lambda _clock: set_back_us)
    with pytest.raises(InvalidRequest, match="too far ahead"):
        await rig.call(OPEN_WRITE, asked)


@runs_in(with_rig, limits=QUICK)
async def test_a_node_that_cannot_open_a_place_is_left_out_or_named(rig: Rig, /) -> None:
    rig.cluster.hooks["open_staging"] = failing_at(at(2), Unreachable("connection refused"))
    plan = await rig.call(OPEN_WRITE, rig.opening())
    assert host(2) not in {one.host for one in plan.targets}
    rig.cluster.hooks["open_staging"] = failing_at(at(2, 3), Unreachable("connection refused"))
    with pytest.raises(TooFewReplicas, match=r"QUORUM needs 2 .*connection refused"):
        await rig.call(OPEN_WRITE, rig.opening())


async def test_a_place_of_an_earlier_life_of_the_stack_is_not_used_again(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    old = {one.transfer for one in plan.targets if one.host == host(1)}
    rig.cluster.hooks["open_staging"] = lambda _where, request: (
        raises(Refused("opened for something else")) if request.transfer in old else None
    )
    again = await rig.call(OPEN_WRITE, asked)
    assert len(again.targets) == 12
    assert not old & {one.transfer for one in again.targets}


async def test_where_the_topology_has_moved_places_are_opened_by_the_newer_one(rig: Rig, /) -> None:
    left = [1]

    def stale(_where: HostId, request: OpenStagingRequest) -> Any:
        if left and request.version < 50:
            if left.pop():
                asyncio.get_running_loop().call_later(0.2, rig.cluster.change)
            return raises(Stale("there is a newer one"))
        return None

    rig.cluster.hooks["open_staging"] = stale
    plan = await rig.call(OPEN_WRITE, rig.opening())
    assert len(plan.targets) == 12
    versions = {request.version for _, request in rig.cluster.of(OpenStagingRequest)}
    assert len(versions) == 2


@runs_in(with_rig, node=FEW_JOBS)
async def test_so_many_jobs_write_at_once(rig: Rig, /) -> None:
    first = rig.opening("a")
    await rig.call(OPEN_WRITE, first)
    await rig.call(OPEN_WRITE, rig.opening("b"))
    with pytest.raises(Overloaded, match="2 jobs write to this table already, and 2 may") as caught:
        await rig.call(OPEN_WRITE, rig.opening("c"))
    assert "table_write_jobs_max" in caught.value.advice
    await rig.call(OPEN_WRITE, rig.opening("a"))
    await rig.call(ABORT_WRITE, AbortWriteRequest(first.session, TABLE, "a"))


async def test_a_job_without_a_good_name_or_table_is_refused(rig: Rig, /) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the id"):
        await rig.call(OPEN_WRITE, rig.opening("a/b"))
    unknown = msgspec.structs.replace(rig.opening(), table=TableId(uuid.UUID(int=9)))
    with pytest.raises(NotFound):
        await rig.call(OPEN_WRITE, unknown)
    assert "group0_execute" not in rig.cluster.names()


# ---- commit


async def test_every_replica_adopts_at_the_version_that_is_held(rig: Rig, /) -> None:
    """INV-BULKW-1."""
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert (answer.lacking, answer.left_to_repair, answer.layers) == ((), (), 12)
    version = rig.cluster.of(AdoptRequest)[0][1].version
    assert {request.version for _, request in rig.cluster.of(AdoptRequest)} == {version}
    assert set(rig.cluster.held) == {version}, "while any of them is under way"
    names = rig.cluster.names()
    assert names.index("adopt") > max(place for place, name in enumerate(names) if name == "seal")
    assert names.index("close_session") > max(place for place, name in enumerate(names) if name == "adopt")
    assert rig.record().state is WriteJobState.DONE
    assert rig.cluster.sessions == []


async def test_a_job_that_is_done_is_not_written_again(rig: Rig, /) -> None:
    """INV-BULKW-3."""
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    await rig.call(COMMIT_WRITE, committing(asked, plan))
    rig.cluster.asked.clear()
    again = await rig.call(OPEN_WRITE, rig.opening())
    assert (again.state, again.timestamp_us, again.targets) == (WriteJobState.DONE, plan.timestamp_us, ())
    await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert not {"seal", "adopt", "open_session"} & set(rig.cluster.names())


async def test_all_runs_of_a_place_are_sealed_together(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    runs = staged(plan)
    more = [msgspec.structs.replace(run, attempt=AttemptId(uuid.UUID(int=run.attempt.int + 100))) for run in runs]
    await rig.call(COMMIT_WRITE, committing(asked, plan, runs + more + runs))
    for _, request in rig.cluster.of(SealRequest):
        assert len(request.files) == 1
        assert len(request.more) == 1, "each attempt once"


@runs_in(with_rig, limits=QUICK)
async def test_a_replica_that_is_down_is_left_to_repair_if_the_level_allows(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.view.down = frozenset(at(3))
    rig.cluster.hooks["seal"] = failing_at(at(3), Unreachable("gone"))
    began = asyncio.get_running_loop().time()
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert answer.left_to_repair == at(3)
    assert answer.layers == 9
    assert asyncio.get_running_loop().time() - began < 10
    assert rig.record().state is WriteJobState.DONE


@runs_in(with_rig, limits=QUICK)
async def test_one_that_comes_back_in_time_gets_it(rig: Rig, /) -> None:
    asked = rig.opening(level=Level.ONE)
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks["adopt"] = failing_at(at(3), Unreachable("gone"))
    asyncio.get_running_loop().call_later(0.5, rig.cluster.hooks.clear)
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert answer.left_to_repair == ()
    assert len(rig.cluster.adopted) == 12


@pytest.mark.parametrize("verb", ["seal", "adopt"])
@runs_in(with_rig, limits=QUICK)
async def test_without_the_level_it_fails_and_says_whether_rows_are_seen(rig: Rig, /, verb: str) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks[verb] = failing_at(at(2, 3), Unreachable("gone"))
    with pytest.raises(EblaError) as caught:
        await rig.call(COMMIT_WRITE, committing(asked, plan))
    error = caught.value
    assert "run it again with the job id 'job': that is safe" in error.advice
    assert "gone" in error.message
    if verb == "seal":
        assert "no row of the job is visible" in error.message
        assert error.outcome is Outcome.NOT_APPLIED
        assert rig.cluster.of(AdoptRequest) == []
    else:
        assert "rows of the job may be visible" in error.message
        assert isinstance(error, WriteFailed)
    assert rig.record().state is WriteJobState.OPEN
    rig.cluster.hooks.clear()
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert answer.lacking == ()


@runs_in(with_rig, limits=QUICK)
async def test_what_an_earlier_call_has_shown_is_told_by_the_next(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks["adopt"] = failing_at(at(2, 3, 4), DeadlineExceeded("silent"))
    with pytest.raises(WriteTimeout):
        await rig.call(COMMIT_WRITE, committing(asked, plan))
    rig.cluster.hooks["seal"] = failing_at(at(1, 2, 3, 4), Unreachable("gone"))
    with pytest.raises(WriteFailed, match="may be visible already"):
        await rig.call(COMMIT_WRITE, committing(asked, plan))


async def test_where_the_version_moved_a_tablet_goes_again_whole(rig: Rig, /) -> None:
    """INV-BULKW-1: acknowledgements of two versions do not add up."""
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    seen: list[TopologyVersion] = []

    def once(where: HostId, request: AdoptRequest) -> Any:
        assert request.version is not None
        if where != host(1) and (not seen or request.version == seen[0]):
            if not seen:
                seen.append(request.version)
                rig.cluster.change()
            return raises(Stale("there is a newer one"))
        return None

    rig.cluster.hooks["adopt"] = once
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert answer.left_to_repair == ()
    by_tablet: dict[Any, dict[Any, set[HostId | None]]] = {}
    for where, request in rig.cluster.of(AdoptRequest):
        by_tablet.setdefault(request.range, {}).setdefault(request.version, set()).add(where)
    for versions in by_tablet.values():
        assert len(versions[max(versions)]) == 3, "all of its replicas, by the newest"


@runs_in(with_rig, limits=QUICK)
async def test_one_replica_by_each_of_two_versions_is_no_quorum(rig: Rig, /) -> None:
    """INV-BULKW-1."""
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    versions: list[TopologyVersion] = []

    def one_each(where: HostId, request: AdoptRequest) -> Any:
        assert request.version is not None
        if request.version not in versions:
            versions.append(request.version)
            if len(versions) < 3:
                asyncio.get_running_loop().call_later(0.1, rig.cluster.change)
        place = [one.host for one in plan.targets if one.range == request.range].index(where)
        number = versions.index(request.version)
        return None if place == number else raises(Stale("it moves") if number < 2 else Unreachable("gone"))

    rig.cluster.hooks["adopt"] = one_each
    with pytest.raises(WriteFailed):
        await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert len(versions) == 3
    assert rig.record().state is WriteJobState.OPEN


async def test_a_replica_that_came_meanwhile_gets_a_place_before_anything_else(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    sets = [tuple(replica((number + place) % 4 + 1, 1) for place in range(3)) for number in range(4)]
    sets[0] = (*sets[0][:2], replica(4, 1))
    tablets = rig.cluster.view.current.snapshot.tablets
    rig.cluster.change(tablets=tablets.put(TABLE, tablet_map(TABLE, sets)))
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert [(one.target.host, one.range) for one in answer.lacking] == [(host(4), plan.routes[0].range)]
    assert not {"seal", "adopt"} & set(rig.cluster.names())
    late = answer.lacking[0].target
    request = committing(asked, plan)
    run = StagedRun(
        host=late.host, transfer=late.transfer, attempt=request.runs[0].attempt, file=request.runs[0].file, rows=3
    )
    whole = msgspec.structs.replace(request, targets=(*plan.targets, late), runs=(*request.runs, run))
    assert (await rig.call(COMMIT_WRITE, whole)).lacking == ()
    assert (replica(4, 1), plan.routes[0].range) in rig.cluster.adopted
    assert (replica(3, 1), plan.routes[0].range) not in rig.cluster.adopted, "it is none any more"


async def test_a_place_that_was_brought_nothing_while_others_were_is_no_copy(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    target = plan.targets[plan.routes[0].targets[0]]
    runs = [run for run in staged(plan) if run.transfer != target.transfer]
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan, runs))
    assert [(one.target.host, one.range) for one in answer.lacking] == [(target.host, target.range)]
    assert answer.lacking[0].target.transfer != target.transfer


def on_vnodes() -> Snapshot:
    definition = a_snapshot().tables[TABLE].definition
    table = msgspec.structs.replace(WORLD.snapshot.tables[VNODES], definition=definition)
    return with_fields(WORLD.snapshot, tables=WORLD.snapshot.tables.put(VNODES, table))


async def lacking_a_range(rig: Rig, job: str = "job") -> tuple[CommitWriteRequest, StagingPlan, list[TokenRange]]:
    """The node of the first target has become a replica of one range more; and the ranges that it is one of now."""
    asked = msgspec.structs.replace(rig.opening(job), table=VNODES)
    plan = await rig.call(OPEN_WRITE, asked)
    own = [route.range for route in plan.routes if 0 in route.targets]
    brought = StagedRanges(plan.targets[0].transfer, tuple(own[1:]))
    return msgspec.structs.replace(committing(asked, plan), brought=(brought,)), plan, own


@runs_in(with_rig, on_vnodes())
async def test_a_place_on_vnodes_that_lacks_a_range_is_brought_all_of_its_ranges(rig: Rig, /) -> None:
    """The place that is opened takes the turn of the one before: what that one had must be in it too."""
    request, plan, own = await lacking_a_range(rig)
    answer = await rig.call(COMMIT_WRITE, request)
    assert [one.range for one in answer.lacking] == own
    (place,) = {one.target.transfer for one in answer.lacking}
    assert place != plan.targets[0].transfer
    assert {one.target.host for one in answer.lacking} == {plan.targets[0].host}
    assert not {"seal", "adopt"} & set(rig.cluster.names())
    whole = msgspec.structs.replace(request, brought=(StagedRanges(plan.targets[0].transfer, tuple(own)),))
    assert (await rig.call(COMMIT_WRITE, whole)).lacking == ()


@runs_in(with_rig, on_vnodes(), QUICK)
async def test_a_place_that_lacks_a_range_does_not_count_though_no_other_can_be_opened(rig: Rig, /) -> None:
    request, plan, _ = await lacking_a_range(rig)
    rig.cluster.hooks["open_staging"] = lambda *_: raises(DiskFull("there is no room"))
    assert (await rig.call(COMMIT_WRITE, request)).left_to_repair == (plan.targets[0].host,)
    partial = (plan.targets[0].host, plan.targets[0].shard)
    assert partial not in {(replica.host, replica.shard) for replica, _ in rig.cluster.adopted}
    rig.cluster.hooks.clear()
    request, _, _ = await lacking_a_range(rig, "strict")
    rig.cluster.hooks["open_staging"] = lambda *_: raises(DiskFull("there is no room"))
    strict = msgspec.structs.replace(request, level=Level.ALL)
    with pytest.raises(EblaError, match="there is no room"):
        await rig.call(COMMIT_WRITE, strict)


async def test_a_place_whose_rows_broke_is_opened_anew(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks["seal"] = lambda where, request: (
        raises(Corruption("rows is not what its source has")) if where == host(1) else None
    )
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert {one.target.host for one in answer.lacking} == {host(1)}
    assert not {one.target.transfer for one in answer.lacking} & {one.transfer for one in plan.targets}
    assert "adopt" not in rig.cluster.names()


async def test_a_stack_that_began_another_life_is_brought_it_anew(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks["adopt"] = failing_at(at(1, 2), Stale("it was staged for another replica"))
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert {one.target.host for one in answer.lacking} <= set(at(1, 2))
    assert answer.lacking


async def test_a_table_that_was_emptied_takes_nothing_of_it(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks["adopt"] = failing_at(at(1, 2, 3, 4), Stale("it was emptied"))
    with pytest.raises(WriteFailed, match="emptied since"):
        await rig.call(COMMIT_WRITE, committing(asked, plan))


async def test_tablets_without_rows_are_not_asked(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rows = [run for number, run in enumerate(staged(plan)) if number in plan.routes[1].targets]
    answer = await rig.call(COMMIT_WRITE, committing(asked, plan, rows))
    assert answer.layers == 3
    assert {request.range for _, request in rig.cluster.of(AdoptRequest)} == {plan.routes[1].range}
    empty = rig.opening("empty")
    plan = await rig.call(OPEN_WRITE, empty)
    assert (await rig.call(COMMIT_WRITE, committing(empty, plan, []))).layers == 0
    assert rig.record("empty").state is WriteJobState.DONE
    assert not rig.record("empty").has_adopted


async def test_a_run_that_is_overtaken_in_its_commit_ends_nothing(rig: Rig, /) -> None:
    first, second = rig.opening(), rig.opening()
    plan = await rig.call(OPEN_WRITE, first)
    overtaken = asyncio.Event()

    async def later() -> Any:
        if not overtaken.is_set():
            overtaken.set()
            await rig.call(OPEN_WRITE, second)
        raise Stale("the session is closed")

    rig.cluster.hooks["adopt"] = lambda _where, _request: later()
    with pytest.raises(WriteFailed, match="is closed"):
        await rig.call(COMMIT_WRITE, committing(first, plan))
    assert (rig.record().state, rig.record().session) == (WriteJobState.OPEN, second.session)


async def test_the_version_stays_held_when_whoever_asked_is_gone(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    asked_for, release = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        asked_for.set()
        await release.wait()
        raise Unavailable("too late")

    rig.cluster.hooks["adopt"] = lambda _where, _request: slow()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(rig.call(COMMIT_WRITE, committing(asked, plan)))
        await asked_for.wait()
        task.cancel()
    version = rig.cluster.of(AdoptRequest)[0][1].version
    assert rig.cluster.view.versions.oldest(TopologyVersion(1 << 40)) == version
    release.set()


# ---- the end


async def test_what_is_given_up_is_closed_and_may_be_run_again(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    await rig.call(ABORT_WRITE, AbortWriteRequest(asked.session, TABLE, asked.job))
    assert rig.cluster.sessions == []
    with pytest.raises(Stale, match="is closed"):
        await rig.call(COMMIT_WRITE, committing(asked, plan))
    again = await rig.call(OPEN_WRITE, rig.opening())
    assert again.timestamp_us == plan.timestamp_us


@runs_in(with_rig, node=NodeLimits(session_close_ms=1000))
async def test_a_session_that_does_not_close_does_not_undo_the_job(rig: Rig, /) -> None:
    asked = rig.opening()
    plan = await rig.call(OPEN_WRITE, asked)
    rig.cluster.hooks["close_session"] = lambda _where, _request: raises(DeadlineExceeded("a node is silent"))
    assert (await rig.call(COMMIT_WRITE, committing(asked, plan))).layers == 12
    assert rig.record().state is WriteJobState.DONE


async def test_batches_of_a_stream(rig: Rig, /) -> None:
    stamps = []
    for batch in range(3):
        asked = rig.opening("stream", batch=batch)
        plan = await rig.call(OPEN_WRITE, asked)
        stamps.append(plan.timestamp_us)
        await rig.call(COMMIT_WRITE, committing(asked, plan))
        again = await rig.call(OPEN_WRITE, rig.opening("stream", batch=batch))
        assert again.state is WriteJobState.DONE
    assert stamps == sorted(set(stamps))
    assert len(rig.cluster.values) == 1, "one record for all"


async def test_a_batch_that_is_done_does_not_take_over_from_the_next(rig: Rig, /) -> None:
    first = rig.opening("stream", batch=0)
    await rig.call(COMMIT_WRITE, committing(first, await rig.call(OPEN_WRITE, first)))
    second = rig.opening("stream", batch=1)
    plan = await rig.call(OPEN_WRITE, second)
    again = await rig.call(OPEN_WRITE, rig.opening("stream", batch=0))
    assert again.state is WriteJobState.DONE
    await rig.call(COMMIT_WRITE, committing(second, plan))
    assert (await rig.call(OPEN_WRITE, rig.opening("stream", batch=1))).state is WriteJobState.DONE


@runs_in(with_rig, a_snapshot(2, 1, 2))
async def test_a_single_node_is_enough_where_there_is_one_copy(rig: Rig, /) -> None:
    asked = rig.opening(level=Level.LOCAL_QUORUM)
    plan = await rig.call(OPEN_WRITE, asked)
    assert (await rig.call(COMMIT_WRITE, committing(asked, plan))).layers == 2

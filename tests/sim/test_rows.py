"""Rows on whole nodes in simulation at a few seeds, and the violations that its checkers find."""

import uuid

import pytest

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import Overloaded, WriteTimeout
from ebla.model.identity import HostId, Replica, SessionId, ShardNumber, TopologyVersion
from ebla.sim.checkers.rows import AttemptedWrite, ReadInterval, RowsLedger
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Session, Snapshot, TopologyState
from ebla.topology.states import SessionKind

CELL = ("t", 1, 1)
OWN = Replica(HostId(uuid.UUID(int=1)), ShardNumber(0))
SESSION = SessionId(uuid.UUID(int=2))


@pytest.mark.parametrize("seed", range(1, 4))
def test_rows_are_right_while_tablets_move_and_everything_fails(seed: int) -> None:
    """Under every fault: INV-ROWS-1, INV-ROWS-2, INV-ROWS-3, INV-ROWS-4, INV-ROWS-5, INV-ROWS-6, INV-ROWS-7,
    INV-ROWS-8, INV-ROWS-9, INV-ROWS-10, INV-ROWS-11 and INV-ROWS-12."""
    outcome = run_scenario(find_scenario("rows"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("rows")
    assert run_scenario(scenario, 4, 4.0).trace == run_scenario(scenario, 4, 4.0).trace


# -- the ledger of rows


def _read(level: Level = Level.QUORUM, began: float = 1.0) -> ReadInterval:
    return ReadInterval(level, began, began + 0.1)


def _written(ledger: RowsLedger, timestamp_us: int, level: Level, *, deletes: bool = False) -> AttemptedWrite:
    tried = AttemptedWrite(timestamp_us=timestamp_us, deletes=deletes)
    ledger.tries(CELL, tried)
    ledger.was_acknowledged(CELL, tried, level)
    return tried


@pytest.mark.parametrize(
    ("written", "read", "must_show"),
    [
        (Level.QUORUM, Level.QUORUM, True),
        (Level.QUORUM, Level.ONE, False),
        (Level.ONE, Level.QUORUM, False),
        (Level.ONE, Level.ALL, True),
        (Level.ALL, Level.ONE, True),
        (Level.EACH_QUORUM, Level.EACH_QUORUM, True),
    ],
)
def test_levels_that_overlap_give_a_floor(written: Level, read: Level, must_show: bool) -> None:
    ledger = RowsLedger()
    _written(ledger, 10, Level.ONE)
    _written(ledger, 20, written)
    floors = ledger.floors([CELL], read)
    assert (ledger.check_shown(floors, {CELL: 10}, _read(read)) is not None) is must_show
    assert ledger.check_shown(floors, {CELL: 20}, _read(read)) is None


def test_an_older_timestamp_acknowledged_later_is_no_floor() -> None:
    ledger = RowsLedger()
    _written(ledger, 20, Level.QUORUM)
    _written(ledger, 10, Level.QUORUM)
    assert ledger.check_shown(ledger.floors([CELL], Level.QUORUM), {CELL: 20}, _read()) is None


def test_nothing_is_shown_only_of_what_was_deleted() -> None:
    ledger = RowsLedger()
    _written(ledger, 20, Level.QUORUM)
    floors = ledger.floors([CELL], Level.QUORUM)
    problem = ledger.check_missing(floors, {}, _read())
    assert problem is not None
    assert "INV-ROWS-5" in problem
    ledger.tries(CELL, AttemptedWrite(timestamp_us=30, deletes=True))
    assert ledger.check_missing(floors, {}, _read()) is None


def test_what_was_shown_stays_unless_a_replica_died_with_it() -> None:
    ledger = RowsLedger()
    ledger.tries(CELL, AttemptedWrite(timestamp_us=10, deletes=False))
    ledger.tries(CELL, AttemptedWrite(timestamp_us=20, deletes=False))
    assert ledger.check_shown(ledger.floors([CELL], Level.QUORUM), {CELL: 20}, _read()) is None
    problem = ledger.check_shown(ledger.floors([CELL], Level.QUORUM), {CELL: 10}, _read())
    assert problem is not None
    assert "INV-ROWS-6" in problem
    ledger.died(2.0)
    assert ledger.check_shown(ledger.floors([CELL], Level.QUORUM), {CELL: 10}, _read()) is None


def test_what_nobody_wrote_and_what_was_refused_is_not_shown() -> None:
    ledger = RowsLedger()
    floors = ledger.floors([CELL], Level.QUORUM)
    assert "INV-ROWS-7" in str(ledger.check_shown(floors, {CELL: 10}, _read()))
    refused, unknown = AttemptedWrite(timestamp_us=20, deletes=False), AttemptedWrite(timestamp_us=30, deletes=False)
    for tried in (refused, unknown):
        ledger.tries(CELL, tried)
    assert ledger.failed(CELL, refused, Overloaded("no room")) is None
    assert ledger.failed(CELL, unknown, WriteTimeout("too few")) is None
    assert "INV-ROWS-8" in str(ledger.check_shown(floors, {CELL: 20}, _read()))
    assert ledger.check_shown(floors, {CELL: 30}, _read()) is None


# -- the ledger of barriers


def _snapshot(version: int, fence: int, *sessions: SessionId) -> Snapshot:
    state = TopologyState(version=TopologyVersion(version), fence=TopologyVersion(fence))
    listed = FrozenMap({each: Session(id=each, kind=SessionKind.STAGE) for each in sessions})
    return Snapshot(state=state, sessions=listed)


def test_a_barrier_binds_effects_by_its_fence_and_routes_by_its_version() -> None:
    failures: list[str] = []
    ledger = BarrierLedger(failures.append)
    ledger.returned(OWN.host, _snapshot(9, 5))
    ledger.effect(OWN, TopologyVersion(5))
    ledger.sent(OWN, TopologyVersion(9), OWN)
    assert not failures
    ledger.effect(OWN, TopologyVersion(4))
    ledger.sent(OWN, TopologyVersion(8), OWN)
    assert [text[:10] for text in failures] == ["INV-ROWS-1", "INV-ROWS-2"]


def test_a_session_is_closed_from_the_barrier_of_a_version_that_does_not_list_it() -> None:
    failures: list[str] = []
    ledger = BarrierLedger(failures.append)
    ledger.saw(_snapshot(8, 1, SESSION))
    ledger.returned(OWN.host, _snapshot(8, 1, SESSION))
    ledger.streamed(OWN, SESSION, 1)
    assert not failures
    ledger.returned(OWN.host, _snapshot(9, 1))
    ledger.streamed(OWN, SESSION, 1)
    assert [text[:10] for text in failures] == ["INV-ROWS-3"]

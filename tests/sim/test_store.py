"""A shard's store in the simulator: no answered write is lost, no deleted data reappears."""

import pytest

from ebla.sim.checkers.store import AttemptedStoreWrite, StoredVersion, StoreLedger
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.storage.manifest import Incarnation

CELL = (Incarnation(1), 2, 3)


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_store_keeps_what_it_answered_and_revives_nothing(seed: int) -> None:
    outcome = run_scenario(find_scenario("store"), seed)
    assert outcome.failure is None, outcome.report


def ledger_with(*tried: AttemptedStoreWrite) -> StoreLedger:
    ledger = StoreLedger(grace_s=10)
    for one in tried:
        assert ledger.tries(CELL, one, None, 0) is None
    return ledger


def test_the_checker_tells_a_lost_answer() -> None:
    ledger = ledger_with(AttemptedStoreWrite(timestamp_us=5, deletes=False, at_s=0, answered=True))
    assert ledger.check(CELL, StoredVersion(5, deletes=False), 0) is None
    assert "lost" in str(ledger.check(CELL, None, 100))


def test_the_checker_tells_what_was_never_written() -> None:
    assert "never written" in str(ledger_with().check(CELL, StoredVersion(5, deletes=False), 0))


def test_the_checker_tells_a_revived_cell() -> None:
    """`INV-LAYER-GC`."""
    ledger = ledger_with(
        AttemptedStoreWrite(timestamp_us=5, deletes=False, at_s=0, answered=True),
        AttemptedStoreWrite(timestamp_us=7, deletes=True, at_s=0, answered=True),
    )
    assert "INV-LAYER-GC" in str(ledger.check(CELL, StoredVersion(5, deletes=False), 100))
    assert ledger.check(CELL, StoredVersion(7, deletes=True), 100) is None
    assert ledger.check(CELL, None, 100) is None
    assert "lost" in str(ledger.check(CELL, None, 5))


def test_a_cell_may_be_older_than_a_tombstone_that_was_dropped_in_its_time() -> None:
    ledger = ledger_with(AttemptedStoreWrite(timestamp_us=7, deletes=True, at_s=0, answered=True))
    late = AttemptedStoreWrite(timestamp_us=5, deletes=False, at_s=0)
    assert "is gone" in str(
        ledger_with(AttemptedStoreWrite(timestamp_us=7, deletes=True, at_s=0, answered=True)).tries(CELL, late, None, 9)
    )
    assert ledger.tries(CELL, late, None, 11) is None
    ledger.answered(CELL, 5)
    assert ledger.check(CELL, StoredVersion(5, deletes=False), 11) is None


def test_what_was_read_after_a_start_must_stay() -> None:
    ledger = ledger_with(AttemptedStoreWrite(timestamp_us=5, deletes=False, at_s=0))
    assert ledger.check(CELL, None, 0) is None
    assert ledger.check(CELL, StoredVersion(5, deletes=False), 0, durable=True) is None
    assert "lost" in str(ledger.check(CELL, None, 0))


def test_a_replica_does_not_vanish() -> None:
    ledger = StoreLedger(grace_s=10)
    ledger.made(Incarnation(1))
    ledger.made(Incarnation(2))
    ledger.dropping(Incarnation(2))
    assert ledger.check_replicas([Incarnation(1)]) is None
    assert "is gone" in str(ledger.check_replicas([]))

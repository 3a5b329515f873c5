"""Jobs over whole tables in simulation at a few seeds, and the violations that its checkers find."""

import uuid
from collections.abc import Callable

import pytest
from tests.unit.pipeline.jobs_rig import HISTORY, a_snapshot
from tests.unit.topology.small_cluster import TABLE, replica

from ebla.feed.topology_view import view_of
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.identity import Replica, SessionId, TopologyVersion, TransferId
from ebla.model.token import WHOLE_RING
from ebla.model.transaction import Revision
from ebla.sim.checkers.table_jobs import WriteJobsLedger
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.wire.transfer_messages import AdoptRequest

FIRST, SECOND = SessionId(uuid.UUID(int=1)), SessionId(uuid.UUID(int=2))
JOB = ("job", None)


@pytest.mark.parametrize("seed", range(1, 4))
def test_what_jobs_promise_holds_while_everything_fails(seed: int) -> None:
    """Under every fault: INV-BULKW-1, INV-BULKW-2, INV-BULKW-3, those of transfers, and those of rows."""
    outcome = run_scenario(find_scenario("table_jobs"), seed, 15.0)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("table_jobs")
    assert run_scenario(scenario, 4, 4.0).trace == run_scenario(scenario, 4, 4.0).trace


# -- the ledger


def judged(story: Callable[[WriteJobsLedger], None]) -> list[str]:
    failures: list[str] = []
    ledger = WriteJobsLedger(fail=failures.append, now=lambda: 5.0)
    ledger.saw(view_of(a_snapshot(2, 3, 4), Revision(HISTORY, 1)))
    story(ledger)
    return [text[:11] for text in failures]


def adopts(ledger: WriteJobsLedger, session: SessionId, *replicas: Replica, version: int = 1) -> None:
    request = AdoptRequest(
        session=session,
        transfer=TransferId(uuid.UUID(int=3)),
        table=TABLE,
        range=WHOLE_RING,
        fence=TopologyVersion(0),
        version=TopologyVersion(version),
    )
    for one in replicas:
        ledger.adopted(one, request)


def test_a_job_on_enough_replicas_is_well() -> None:
    def story(ledger: WriteJobsLedger) -> None:
        ledger.opened(JOB, FIRST, 7)
        adopts(ledger, FIRST, replica(1, 1), replica(2, 1))
        assert ledger.acknowledged(FIRST, TABLE, Level.QUORUM, [-5])
        ledger.adopts(replica(3, 1), FIRST, 6.0)

    assert judged(story) == []


def test_too_few_or_by_two_versions_is_told() -> None:
    def story(ledger: WriteJobsLedger) -> None:
        ledger.views[TopologyVersion(2)] = ledger.views[TopologyVersion(1)]
        ledger.opened(JOB, FIRST, 7)
        adopts(ledger, FIRST, replica(1, 1))
        adopts(ledger, FIRST, replica(2, 1), version=2)
        assert not ledger.acknowledged(FIRST, TABLE, Level.QUORUM, [-5])
        adopts(ledger, FIRST, replica(2, 0), replica(4, 1))
        ledger.acknowledged(FIRST, TABLE, Level.QUORUM, [-5])

    assert judged(story) == ["INV-BULKW-1"] * 2


def test_two_timestamps_and_what_comes_after_the_end_are_told() -> None:
    def story(ledger: WriteJobsLedger) -> None:
        ledger.opened(JOB, FIRST, 7)
        ledger.opened(JOB, SECOND, 8)
        adopts(ledger, SECOND, replica(1, 1))
        assert ledger.acknowledged(SECOND, TABLE, Level.ONE, [-5])
        ledger.adopts(replica(3, 1), FIRST, 4.0)
        ledger.adopts(replica(3, 1), FIRST, 6.0)
        ledger.opened(JOB, FIRST, 7)

    assert judged(story) == ["INV-BULKW-2", "INV-BULKW-3", "INV-BULKW-3"]

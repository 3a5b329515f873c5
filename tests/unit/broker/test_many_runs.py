"""A job that fails again and again may still be run again."""

from tests.async_tests import runs_in
from tests.unit.broker.broker_rig import Rig, committing, with_rig

from ebla.model.records.write_jobs import PAST_SESSIONS_MAX, WriteJobState
from ebla.wire.table_calls import COMMIT_WRITE, OPEN_WRITE


@runs_in(with_rig)
async def test_runs_that_are_known_to_have_ended_are_not_closed_for_ever(rig: Rig, /) -> None:
    first = await rig.call(OPEN_WRITE, rig.opening())
    for _ in range(2 * PAST_SESSIONS_MAX):
        asked = rig.opening()
        plan = await rig.call(OPEN_WRITE, asked)
        assert rig.record().closing == ()
        assert rig.cluster.sessions == [asked.session]
        assert plan.timestamp_us == first.timestamp_us
    await rig.call(COMMIT_WRITE, committing(asked, plan))
    assert rig.record().state is WriteJobState.DONE

"""Rows that a job's driver writes over CQL: who may, and what errors say of them afterwards."""

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.broker.broker_rig import Rig, committing, raises, with_rig

from ebla.broker.broker_deps import BrokerLimits
from ebla.model.errors import Corruption, EblaError, Refused, WriteFailed
from ebla.model.records.write_jobs import WriteJobState
from ebla.wire.table_calls import COMMIT_WRITE, OPEN_WRITE

QUICK = BrokerLimits(stragglers_ms=1_000, patience_ms=3_000, open_stragglers_ms=500)


@runs_in(with_rig, limits=QUICK)
async def test_rows_that_are_announced_may_be_seen(rig: Rig, /) -> None:
    asked = rig.opening()
    request = committing(asked, await rig.call(OPEN_WRITE, asked))
    announced = await rig.call(COMMIT_WRITE, msgspec.structs.replace(request, runs=(), announces_rows=True))
    assert not announced.is_done
    assert (rig.record().state, rig.record().has_adopted) == (WriteJobState.OPEN, True)
    assert asked.session in rig.cluster.sessions
    rig.cluster.hooks["seal"] = lambda *_: raises(Corruption("it is broken"))
    rig.cluster.hooks["open_staging"] = lambda *_: raises(Refused("there is no room"))
    with pytest.raises(WriteFailed, match="may be visible already"):
        await rig.call(COMMIT_WRITE, request)


@runs_in(with_rig, limits=QUICK)
async def test_a_run_that_was_overtaken_is_told_before_it_writes(rig: Rig, /) -> None:
    first = rig.opening()
    late = msgspec.structs.replace(committing(first, await rig.call(OPEN_WRITE, first)), announces_rows=True)
    second = rig.opening()
    plan = await rig.call(OPEN_WRITE, second)
    with pytest.raises(EblaError, match="another run of job 'job' has taken over"):
        await rig.call(COMMIT_WRITE, late)
    assert not rig.record().has_adopted
    await rig.call(COMMIT_WRITE, committing(second, plan))
    assert (await rig.call(COMMIT_WRITE, late)).is_done

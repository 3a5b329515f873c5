"""The checker of leases sees each broken promise."""

import uuid

from ebla.leadership.messages import LeaseGrant, LeaseId
from ebla.model.identity import HostId
from ebla.sim.checkers.leadership import LeadershipRecord

NODE, LEADER, OTHER = (HostId(uuid.UUID(int=number)) for number in (1, 2, 3))
FIRST = LeaseGrant(LEADER, LeaseId(uuid.UUID(int=11)), 1)
SECOND = LeaseGrant(OTHER, LeaseId(uuid.UUID(int=12)), 1)


def test_a_second_promise_within_the_first_one_breaks_inv_lease_1() -> None:
    record = LeadershipRecord()
    assert record.promised(NODE, FIRST, now_s=0.0, until_s=15.0) is None
    assert "INV-LEASE-1" in (record.promised(NODE, SECOND, now_s=14.9, until_s=30.0) or "")


def test_a_promise_ends_by_its_holder() -> None:
    record = LeadershipRecord()
    record.promised(NODE, FIRST, now_s=0.0, until_s=15.0)
    record.ended_by_holder(FIRST.lease_id)
    assert record.promised(NODE, SECOND, now_s=1.0, until_s=16.0) is None


def test_counting_a_lease_that_ran_out_or_was_passed_on_breaks_inv_lease_2() -> None:
    record = LeadershipRecord()
    record.promised(NODE, FIRST, now_s=0.0, until_s=15.0)
    assert record.counted(NODE, FIRST, 14.9) is None
    assert "INV-LEASE-2" in (record.counted(NODE, FIRST, 15.0) or "")
    assert "INV-LEASE-2" in (record.counted(NODE, SECOND, 1.0) or "")


def test_granting_while_something_runs_breaks_inv_lease_3() -> None:
    record = LeadershipRecord()
    record.promised(NODE, FIRST, now_s=0.0, until_s=15.0)
    assert "INV-LEASE-3" in (record.promised(NODE, SECOND, now_s=15.0, until_s=30.0, running=[FIRST]) or "")


def test_an_effect_under_an_older_term_breaks_inv_lease_4() -> None:
    record = LeadershipRecord()
    record.started("coordinator", 2)
    assert record.acted("coordinator", 2) is None
    assert record.acted("pipeline", 1) is None
    assert "INV-LEASE-4" in (record.acted("coordinator", 1) or "")


def test_an_order_under_another_lease_breaks_inv_lease_5() -> None:
    record = LeadershipRecord()
    record.promised(NODE, FIRST, now_s=0.0, until_s=15.0)
    assert record.order_acted(NODE, FIRST) is None
    assert "INV-LEASE-5" in (record.order_acted(NODE, LeaseGrant(LEADER, FIRST.lease_id, 2)) or "")

from tests.unit.request.write_rig import QUORUM, A, B

from ebla.model.errors import Outcome, TooFewReplicas
from ebla.request.write_acks import AckCounter, ReplicaWriteFailure, make_ack_rule
from ebla.request.write_errors import WriteProgress, write_failed, write_retry_failed, write_timeout


def acks(acknowledged: int, refused: int = 0) -> AckCounter:
    made = AckCounter(make_ack_rule([2], [(0,)] * 3))
    for position in range(acknowledged):
        made.acknowledge(position)
    for position in range(acknowledged, acknowledged + refused):
        made.refuse(position)
    return made


FULL = ReplicaWriteFailure(target=A, error="disk_full", message="no space", advice="make room")


def test_a_timeout_tells_how_far_the_write_is_and_what_to_do() -> None:
    told = write_timeout(WriteProgress(level=QUORUM, writes=1, lacking=[acks(1)], failures=[]), 250)
    assert told.message == "QUORUM write: 1 of 2 replicas acknowledged within 250 ms"
    assert "may be there" in told.advice
    assert (told.received, told.required) == (1, 2)


def test_a_failure_tells_who_refused_and_why() -> None:
    told = write_failed(WriteProgress(level=QUORUM, writes=1, lacking=[acks(1, 2)], failures=[FULL]))
    assert f"shard 0 of host {A.host}: disk_full, no space" in told.message
    assert told.advice.endswith("make room")
    assert (told.received, told.required, told.failed) == (1, 2, 2)


def test_of_a_batch_the_number_is_told_and_the_write_that_lacks_most() -> None:
    told = write_timeout(WriteProgress(level=QUORUM, writes=9, lacking=[acks(1), acks(0), acks(1)], failures=[]), 250)
    assert "3 of 9 writes were not acknowledged at QUORUM, of one only 0 of 2 replicas acknowledged" in told.message
    assert told.received == 0


def test_a_few_failures_are_told_and_the_rest_counted() -> None:
    many = [ReplicaWriteFailure(target=B, error="corruption", message=f"block {number}") for number in range(5)]
    told = write_failed(WriteProgress(level=QUORUM, writes=1, lacking=[acks(0, 2)], failures=many))
    assert "block 2; and 2 more)" in told.message
    assert "block 3" not in told.message


def test_a_second_try_that_did_not_start_leaves_the_outcome_of_the_first_unknown() -> None:
    cause = TooFewReplicas("QUORUM needs 2 replicas and 1 of them are up")
    told = write_retry_failed(WriteProgress(level=QUORUM, writes=1, lacking=[acks(1)], failures=[]), cause)
    assert told.outcome is Outcome.UNKNOWN
    assert cause.message in told.message

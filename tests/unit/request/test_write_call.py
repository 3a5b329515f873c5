import pytest
from tests.unit.request.write_rig import QUORUM, A, B, mutation

from ebla.model.errors import ConnectionLost, DeadlineExceeded, DiskFull, EblaError, Outcome, Stale, TooFewReplicas
from ebla.model.identity import TopologyVersion
from ebla.request.write_acks import AckCounter, make_ack_rule
from ebla.request.write_call import (
    ReplicaRefusal,
    ReplicaWriteFailure,
    WriteCall,
    WriteProgress,
    replica_write_failure,
    write_failed,
    write_retry_failed,
    write_timeout,
)


def acks(acknowledged: int, refused: int = 0) -> AckCounter:
    made = AckCounter(make_ack_rule([2], [(0,)] * 3))
    for position in range(acknowledged):
        made.acknowledge(position)
    for position in range(acknowledged, acknowledged + refused):
        made.refuse(position)
    return made


FULL = ReplicaWriteFailure(target=A, error="disk_full", message="no space", advice="make room")


def test_a_timeout_tells_how_far_the_write_is_and_what_to_do() -> None:
    failure = write_timeout(WriteProgress(level=QUORUM, writes=1, lacking=[acks(1)], failures=[]), 250)
    assert failure.message == "QUORUM write: 1 of 2 replicas acknowledged within 250 ms"
    assert "may be there" in failure.advice
    assert (failure.received, failure.required) == (1, 2)


def test_a_failure_tells_who_refused_and_why() -> None:
    failure = write_failed(WriteProgress(level=QUORUM, writes=1, lacking=[acks(1, 2)], failures=[FULL]))
    assert f"shard 0 of host {A.host}: disk_full, the disk is full" in failure.message
    assert failure.__notes__ == [f"shard 0 of host {A.host}: no space"], "for the log, not for clients"
    assert failure.advice.endswith("make room")
    assert (failure.received, failure.required, failure.failed) == (1, 2, 2)


def test_of_a_batch_the_number_is_told_and_the_write_that_lacks_most() -> None:
    failure = write_timeout(
        WriteProgress(level=QUORUM, writes=9, lacking=[acks(1), acks(0), acks(1)], failures=[]), 250
    )
    assert "3 of 9 writes were not acknowledged at QUORUM, of one only 0 of 2 replicas acknowledged" in failure.message
    assert failure.received == 0


def test_a_few_failures_are_told_and_the_rest_counted() -> None:
    many = [ReplicaWriteFailure(target=B, error="refused", message=f"block {number}") for number in range(5)]
    failure = write_failed(WriteProgress(level=QUORUM, writes=1, lacking=[acks(0, 2)], failures=many))
    assert "block 2; and 2 more)" in failure.message
    assert "block 3" not in failure.message


def test_a_second_try_that_did_not_start_leaves_the_outcome_of_the_first_unknown() -> None:
    cause = TooFewReplicas("QUORUM needs 2 replicas and 1 of them are up")
    failure = write_retry_failed(WriteProgress(level=QUORUM, writes=1, lacking=[acks(1)], failures=[]), cause)
    assert failure.outcome is Outcome.UNKNOWN
    assert cause.message in failure.message


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (Stale("fenced"), ReplicaRefusal.STALE),
        (DeadlineExceeded("late"), ReplicaRefusal.SILENT),
        (ConnectionLost("gone"), ReplicaRefusal.REFUSED),
        (DiskFull("full"), ReplicaRefusal.REFUSED),
    ],
)
def test_what_is_done_about_an_error(error: EblaError, refusal: ReplicaRefusal) -> None:
    assert replica_write_failure(A, error).refusal is refusal


class Calls:
    """The callbacks of a call, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.call = WriteCall(TopologyVersion(3), 10.0, lambda _: self.log.append("ended"))
        self.listen()

    def listen(self) -> None:
        self.call.on_decided = lambda _: self.log.append("decided")


STALE = replica_write_failure(A, Stale("fenced"))
SILENT = replica_write_failure(A, DeadlineExceeded("late"))
TWO_OF_THREE = make_ack_rule([2], [(0,)] * 3)


def test_a_call_is_decided_with_the_level_and_ended_with_the_last_reply() -> None:
    calls = Calls()
    pending = calls.call.add(mutation(), TWO_OF_THREE, 10)
    pending.on_reply(0, None)
    assert calls.log == []
    pending.on_reply(2, None)
    assert (calls.log, calls.call.unmet) == (["decided"], 0)
    pending.on_reply(1, FULL)
    assert calls.log == ["decided", "ended"]


def test_a_call_is_decided_when_each_of_its_mutations_is() -> None:
    calls = Calls()
    first, second = (calls.call.add(mutation(), TWO_OF_THREE, 10) for _ in range(2))
    for position in range(2):
        first.on_reply(position, None)
        second.on_reply(position, FULL)
    assert (calls.log, calls.call.unmet) == (["decided"], 1)
    assert calls.call.lacking() == [second]
    assert calls.call.failures == (FULL,)
    assert not calls.call.is_open


def test_a_stale_reply_decides_and_a_later_acknowledgement_is_heard_of_again() -> None:
    calls = Calls()
    pending = calls.call.add(mutation(), TWO_OF_THREE, 10)
    pending.on_reply(0, STALE)
    assert (calls.log, calls.call.is_stale) == (["decided"], True)
    calls.listen()
    pending.on_reply(1, None)
    pending.on_reply(2, None)
    assert (calls.log, calls.call.unmet) == (["decided", "decided", "ended"], 0)


def test_silence_decides_nothing_before_the_last_replica_has_ended() -> None:
    calls = Calls()
    pending = calls.call.add(mutation(), TWO_OF_THREE, 10)
    pending.on_reply(0, SILENT)
    pending.on_reply(1, SILENT)
    assert (calls.log, calls.call.is_open) == ([], True)
    pending.on_reply(2, None)
    assert (calls.log, calls.call.unmet) == (["decided", "ended"], 1)


def test_a_call_that_is_woken_is_decided_once() -> None:
    calls = Calls()
    calls.call.add(mutation(), TWO_OF_THREE, 10)
    calls.call.wake()
    calls.call.wake()
    assert calls.log == ["decided"]

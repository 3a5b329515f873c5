"""What the record of a write job becomes."""

import uuid

import msgspec
import pytest

from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import SessionId, TableId
from ebla.model.records.write_jobs import (
    DAY_MS,
    KEPT_MAX,
    PAST_SESSIONS_MAX,
    WriteJobRecord,
    WriteJobState,
    WriteRun,
    check_job_name,
    expired_records,
    is_done,
    is_write_job,
    record_adopting,
    record_done,
    record_opened,
    require_current_run,
    write_job_id,
)

TABLE = TableId(uuid.UUID(int=1))


def run(session: int, batch: int | None = None, now_ms: int = 1_000) -> WriteRun:
    return WriteRun(table=TABLE, job="job", session=SessionId(uuid.UUID(int=session)), batch=batch, now_ms=now_ms)


def first(session: int = 1, batch: int | None = None, timestamp_us: int = 100) -> WriteJobRecord:
    return record_opened(None, run(session, batch), timestamp_us)


def test_a_run_that_asks_again_is_the_same_run() -> None:
    record = first()
    assert record_opened(record, run(1), 200) is record
    assert (record.timestamp_us, record.state, record.has_adopted) == (100, WriteJobState.OPEN, False)


def test_a_second_run_has_the_timestamp_of_the_first_and_has_it_closed() -> None:
    """INV-BULKW-2."""
    again = record_opened(record_adopting(first()), run(2), 200)
    assert (again.timestamp_us, again.session.int, [one.int for one in again.closing]) == (100, 2, [1])
    assert again.has_adopted, "what the first run has shown is shown"
    third = record_opened(again, run(3), 300)
    assert [one.int for one in third.closing] == [1, 2], "it is unknown whether the second has closed the first"
    with pytest.raises(Stale, match="another run"):
        record_opened(third, run(1), 400)
    with pytest.raises(Stale, match="taken over"):
        require_current_run(third, run(2))


def test_what_is_done_stays_done() -> None:
    """INV-BULKW-3."""
    record = record_done(first(), run(1, now_ms=5_000))
    assert (record.ended_ms, record.closing) == (5_000, ())
    assert record_opened(record, run(2), 200) is record
    assert is_done(require_current_run(record, run(2)), None)
    with pytest.raises(NotFound):
        require_current_run(None, run(1))


def test_runs_that_nobody_can_close_do_not_pile_up_for_ever() -> None:
    record: WriteJobRecord | None = first()
    for session in range(2, 2 + PAST_SESSIONS_MAX):
        record = record_opened(record, run(session), 1)
    with pytest.raises(Refused, match="not known to have ended"):
        record_opened(record, run(99), 1)


def test_batches_of_a_stream_come_in_order_each_with_a_later_timestamp() -> None:
    record = record_done(first(batch=0), run(1, 0))
    assert record_opened(record, run(2, 0), 1) is record
    following = record_opened(record, run(2, 1), 50)
    assert (following.timestamp_us, following.batch, following.done_through) == (101, 1, 0), (
        "though the clock is behind"
    )
    assert following.state is WriteJobState.OPEN
    assert not is_done(following, 1)
    again = record_opened(following, run(3, 1), 500)
    assert again.timestamp_us == 101
    assert is_done(record_done(again, run(3, 1)), 1)
    assert not is_done(record_done(again, run(3, 1)), 2)
    skipped = record_opened(again, run(4, 5), 500)
    with pytest.raises(InvalidRequest, match="comes after batch 5"):
        record_opened(skipped, run(5, 3), 600)


def test_a_session_is_for_one_batch_and_a_name_for_one_kind() -> None:
    record = record_done(first(batch=0), run(1, 0))
    with pytest.raises(InvalidRequest, match="to another batch"):
        record_opened(record, run(1, 1), 1)
    with pytest.raises(InvalidRequest, match="is the id of a stream, not of a single job"):
        record_opened(record, run(2), 1)
    with pytest.raises(InvalidRequest, match="is the id of a single job"):
        require_current_run(first(), run(1, 0))


def test_what_nobody_will_ask_for_any_more_is_forgotten() -> None:
    def one(job: str, **changes: object) -> WriteJobRecord:
        return msgspec.structs.replace(first(), job=job, opened_ms=0, **changes)

    done = WriteJobState.DONE
    records = [
        one("old", state=done, ended_ms=10),
        one("new", state=done, ended_ms=8 * DAY_MS),
        one("open"),
        one("stream", state=done, batch=3, ended_ms=10),
        one("dropped", state=done, ended_ms=8 * DAY_MS, table=TableId(uuid.UUID(int=2))),
    ]
    assert [record.job for record in expired_records(records, [TABLE], 8 * DAY_MS)] == ["old", "dropped"]
    assert [record.job for record in expired_records(records, [TABLE], 40 * DAY_MS)] == [
        "old",
        "new",
        "open",
        "dropped",
    ]
    many = [one(f"{number:04}", state=done, ended_ms=number) for number in range(KEPT_MAX + 2)]
    assert [record.job for record in expired_records(many, [TABLE], DAY_MS)] == ["0000", "0001"]


@pytest.mark.parametrize("name", ["", "a/b", " a", "a b", "x" * 201, "é", "-a", "a\n"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the id"):
        check_job_name(name)


def test_the_session_of_a_write_is_known_by_its_job() -> None:
    check_job_name("load-2024:01_a.b@c+d=e")
    assert write_job_id(TABLE, "a") == write_job_id(TABLE, "a") != write_job_id(TABLE, "b")
    assert is_write_job(write_job_id(TABLE, "a"))
    assert not is_write_job(uuid.UUID(int=5, version=4))
    assert not is_write_job(None)

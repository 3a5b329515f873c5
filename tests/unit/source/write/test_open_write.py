"""The begin of a write: what is compared with the table, what is asked of the nodes and in which order."""

from typing import Any

import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType
from tests.unit.source.write_fakes import FakeContact, plan_of
from tests.unit.storage.random_rows import MIXED

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest, NotFound, Refused
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import TableOptions, TableSchema
from ebla.model.token import WHOLE_RING
from ebla.source.options import NullHandling, TimestampPrecision, parse_write_options
from ebla.source.write.encode_rows import RowEncoding, row_encoding
from ebla.source.write.open_write import check_columns, open_write
from ebla.storage.columns.load_encoding import WriteStamp
from ebla.wire.table_calls import CallDone, DescribeTableAnswer

GIVEN = {"keyspace": "ks", "table": "t"}
KEY = [StructField("p", StringType()), StructField("c", IntegerType()), StructField("d", StringType())]


def frame(*fields: StructField) -> StructType:
    return StructType([*KEY, *fields])


def contact(
    state: WriteJobState = WriteJobState.OPEN, schema: TableSchema = MIXED, *, is_cdc_enabled: bool = False
) -> FakeContact:
    return FakeContact(
        describe_table=lambda _: DescribeTableAnswer(schema, b"authority", is_cdc_enabled),
        open_write=lambda _: plan_of(schema, [WHOLE_RING], [0], state),
        abort_write=lambda _: CallDone(),
    )


def names(asked: FakeContact) -> list[str]:
    return [name for name, _ in asked.calls]


# ---- options


def test_options_have_defaults() -> None:
    found = parse_write_options(GIVEN)
    assert found.access.level is ConsistencyLevel.LOCAL_QUORUM
    assert (found.nulls, found.timestamps) == (NullHandling.UNSET, TimestampPrecision.EXACT)
    assert (found.job, found.ttl_s, found.ttl_column, found.op_column) == ("", None, "", "")
    assert (found.small_rows, found.run_bytes, found.life_ms) == (1_000, 64 << 20, 0)
    assert not found.may_truncate


def test_options_are_read() -> None:
    found = parse_write_options(
        GIVEN | {"job": "j", "nulls": "DELETE", "ttl": "2h", "ttl_column": "x", "op": "o", "timestamps": "cut",
                 "confirm.truncate": "true", "small_rows": "0", "run_bytes": "1m", "life": "3h"}
    )  # fmt: skip
    assert (found.job, found.nulls, found.ttl_s, found.timestamps) == (
        "j",
        NullHandling.DELETE,
        7_200,
        TimestampPrecision.CUT,
    )
    assert (found.ttl_column, found.op_column, found.may_truncate) == ("x", "o", True)
    assert (found.small_rows, found.run_bytes, found.life_ms) == (0, 1 << 20, 10_800_000)
    assert parse_write_options(GIVEN | {"ttl": "0"}).ttl_s == 0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"nulls": "keep"}, "unset or delete"),
        ({"ttl": "-5"}, "option ttl='-5'"),
        ({"ttl": "9000000000"}, "at most"),
        ({"small_rows": "many"}, "0 to 10000"),
        ({"job": "x" * 201}, "at most 200"),
        ({"split_bytes": "1m"}, "for reading, not for writing"),
    ],
)
def test_wrong_options_are_told(wrong: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_write_options(GIVEN | wrong)


# ---- columns


def check(given: StructType, **options: str) -> None:
    check_columns(MIXED, given, parse_write_options(GIVEN | options))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (frame(), {}),
        (frame(StructField("X", LongType()), StructField("l", ArrayType(IntegerType()))), {}),
        (StructType([KEY[0], StructField("s", StringType())]), {}),
        (StructType([KEY[0], StructField("op", StringType())]), {"op": "op"}),
        (frame(StructField("left", LongType())), {"ttl_column": "left"}),
    ],
)
def test_columns_that_fit_are_accepted_and_one_more_is_not(given: StructType, options: dict[str, str]) -> None:
    check(given, **options)
    with pytest.raises(InvalidRequest):
        check(given.add(StructField("elsewhere", StringType())), **options)


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        (StructType(KEY[:2]), {}, "lacks key columns of ks.t: d"),
        (StructType([KEY[0]]), {}, "lacks key columns of ks.t: c, d"),
        (StructType([KEY[1], StructField("s", StringType())]), {}, "lacks key columns of ks.t: p, d"),
        (frame(StructField("x", StringType())), {}, "column 'x': a CQL int is written from int"),
        (frame(StructField("w", StringType()), StructField("W", StringType())), {}, "2 columns of the DataFrame"),
        (frame(StructField("w", StringType()), StructField("w", StringType())), {}, "2 columns named 'w'"),
        (frame(), {"op": "what"}, "option op='what' names no column"),
        (frame(StructField("o", LongType())), {"op": "o"}, "column 'o' of option op is bigint, not text"),
        (frame(StructField("o", StringType())), {"ttl_column": "o"}, "is string, not whole numbers"),
    ],
)
def test_what_does_not_fit_is_told_before_any_task_runs(
    given: StructType, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        check(given, **options)


def test_an_unknown_column_is_told_with_what_may_have_been_meant() -> None:
    with pytest.raises(NotFound, match="no column 'ww'"):
        check(frame(StructField("ww", StringType())))


# ---- asking


def opened(asked: FakeContact, *, overwrite: bool = False, **options: Any) -> Any:
    return open_write(asked, parse_write_options(GIVEN | options), frame(), overwrite=overwrite)


def test_a_write_is_described_and_opened() -> None:
    asked = contact()
    found = opened(asked, job="nightly", consistency="ALL", life="1h")
    assert names(asked) == ["describe_table", "open_write"]
    request = asked.calls[-1][1]
    assert (request.job, request.level, request.life_ms) == ("nightly", ConsistencyLevel.ALL, 3_600_000)
    assert (found.job.session, found.job.job) == (request.session, "nightly")


def test_without_a_name_each_run_is_another_job() -> None:
    jobs = {opened(contact()).job.job for _ in range(3)}
    assert len(jobs) == 3


def test_a_table_whose_changes_are_captured_is_refused() -> None:
    asked = contact(is_cdc_enabled=True)
    with pytest.raises(Refused, match=r"captured \(CDC\)"):
        opened(asked)
    assert names(asked) == ["describe_table"]


def test_overwrite_wants_to_be_confirmed() -> None:
    asked = contact()
    with pytest.raises(InvalidRequest, match=r"confirm\.truncate=true"):
        opened(asked, overwrite=True)
    assert "query" not in names(asked)


def test_overwrite_empties_the_table_and_opens_the_new_one() -> None:
    asked = contact()
    opened(asked, overwrite=True, **{"confirm.truncate": "true"})
    assert names(asked) == ["describe_table", "query", "describe_table", "open_write"]
    assert asked.calls[1][1] == 'TRUNCATE "ks"."t"'


def test_a_job_that_has_ended_well_does_not_empty_the_table_again() -> None:
    asked = contact(WriteJobState.DONE)
    found = opened(asked, overwrite=True, job="j", **{"confirm.truncate": "true"})
    assert names(asked) == ["describe_table", "open_write"]
    assert found.plan.state is WriteJobState.DONE


def test_a_job_with_a_name_that_overwrites_looks_first() -> None:
    asked = contact()
    opened(asked, overwrite=True, job="j", **{"confirm.truncate": "true"})
    assert names(asked) == ["describe_table", "open_write", "abort_write", "query", "describe_table", "open_write"]
    assert asked.calls[2][1].session == asked.calls[1][1].session
    assert asked.calls[5][1].session != asked.calls[1][1].session


def test_times_follow_from_the_jobs_timestamp_and_the_table() -> None:
    plan = plan_of(MIXED, [WHOLE_RING], [0])
    assert row_encoding(parse_write_options(GIVEN), plan) == RowEncoding(
        schema=MIXED, stamp=WriteStamp(timestamp_us=plan.timestamp_us, at_s=1_700_000_000)
    )
    short = TableSchema(
        id=MIXED.id,
        keyspace="ks",
        name="t",
        columns=MIXED.columns,
        options=TableOptions(default_ttl_s=30),
        layouts=MIXED.layouts,
    )
    lasting = plan_of(short, [WHOLE_RING], [0])
    assert row_encoding(parse_write_options(GIVEN), lasting).stamp.ttl_s == 30
    assert row_encoding(parse_write_options(GIVEN | {"ttl": "0", "nulls": "delete"}), lasting).stamp == WriteStamp(
        timestamp_us=plan.timestamp_us, at_s=1_700_000_000, nulls_delete=True, ttl_s=0
    )

"""Options of a write."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.model.errors import InvalidRequest
from ebla.model.schema import TTL_S_MAX
from ebla.source.options import OptionSide, OptionValues, TableAccess, parse_table_access

JOB_CHARACTERS_MAX = 200
SMALL_ROWS_MAX = 10_000


class NullHandling(enum.StrEnum):
    UNSET = "unset"
    DELETE = "delete"


class TimestampPrecision(enum.StrEnum):
    EXACT = "exact"
    CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    access: TableAccess
    job: str
    """Empty: the write has no name, and each run of it is a new job."""
    nulls: NullHandling
    ttl_s: int | None
    """None: the table's default."""
    ttl_column: str
    op_column: str
    timestamps: TimestampPrecision
    may_truncate: bool
    small_rows: int
    run_bytes: int
    life_ms: int
    """0: the limit in the nodes' options."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    given = OptionValues(options, OptionSide.WRITE)
    job = given.text("job")
    if len(job) > JOB_CHARACTERS_MAX:
        raise InvalidRequest(f"the name of a job has {len(job)} characters, at most {JOB_CHARACTERS_MAX} are allowed")
    return WriteOptions(
        access=parse_table_access(given),
        job=job,
        nulls=NullHandling(_one_of(given, "nulls", NullHandling)),
        ttl_s=_ttl_s(given),
        ttl_column=given.text("ttl_column"),
        op_column=given.text("op"),
        timestamps=TimestampPrecision(_one_of(given, "timestamps", TimestampPrecision)),
        may_truncate=given.flag("confirm.truncate"),
        small_rows=_count(given, "small_rows", SMALL_ROWS_MAX),
        run_bytes=given.size("run_bytes"),
        life_ms=int(given.seconds("life") * 1000) if given.has("life") else 0,
    )


def _one_of(given: OptionValues, name: str, choices: type[enum.StrEnum]) -> str:
    found = given.text(name).lower()
    if found not in list(choices):
        raise given.wrong(name, " or ".join(choices))
    return found


def _count(given: OptionValues, name: str, most: int) -> int:
    text = given.text(name)
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise given.wrong(name, f"a number from 0 to {most}")
    return int(text)


def _ttl_s(given: OptionValues) -> int | None:
    """A plain number is in seconds."""
    if not given.has("ttl"):
        return None
    text = given.text("ttl").strip()
    seconds = int(text) if text.isascii() and text.isdigit() else int(given.seconds("ttl"))
    if not 0 <= seconds <= TTL_S_MAX:
        raise given.wrong("ttl", f"at most {TTL_S_MAX} seconds")
    return seconds

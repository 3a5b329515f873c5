"""All options of `format("ebla")`, for reading and for writing, in one table; and how they are parsed.

Spark passes them as strings with case-insensitive names. An unknown name is an error: a typing mistake in `consistency`
must not silently select the default.
"""

import difflib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest
from ebla.model.schema import TTL_S_MAX
from ebla.source.contact_points import ContactPoints, parse_contacts
from ebla.source.cql_client import CqlSecurity


class OptionSide(enum.StrEnum):
    BOTH = "reading and writing"
    READ = "reading"
    WRITE = "writing"


OPTIONS: Mapping[OptionSide, Mapping[str, str]] = {
    OptionSide.BOTH: {
        "contact": "127.0.0.1:9042",
        "keyspace": "",
        "table": "",
        "username": "",
        "password": "",
        "ssl": "false",
        "ssl.ca": "",
        "ssl.verify": "true",
        "consistency": "LOCAL_QUORUM",
        "timeout": "60s",
        "shortcut": "true",
    },
    OptionSide.READ: {
        "columns": "",
        "token": "",
        "writetime": "",
        "ttl": "",
        "where": "",
        "pushdown": "false",
        "split_bytes": "128m",
        "life": "24h",
    },
    OptionSide.WRITE: {
        "job": "",
        "nulls": "unset",
        "ttl": "",
        "ttl_column": "",
        "op": "",
        "timestamps": "exact",
        "confirm.truncate": "false",
        "small_rows": "1000",
        "run_bytes": "64m",
        "life": "",
    },
}
"""Their defaults. The table in docs/spark.md says what each of them means."""

SPARK_OWN_OPTIONS = ("path", "checkpointlocation", "queryname", "outputmode", "mergeschema")
"""Options that Spark itself adds."""

SYSTEM_AUTHORITIES = "system"
"""The value of `ssl.ca` instead of a file."""
JOB_CHARACTERS_MAX = 200
SMALL_ROWS_MAX = 10_000

_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

E = TypeVar("E", bound=enum.StrEnum)


class OptionValues:
    """The options of a user, for one side; every name is known. Raises `InvalidRequest`."""

    def __init__(self, options: Mapping[str, str], side: OptionSide) -> None:
        self.side = side
        self._values = {name.lower(): value for name, value in options.items()}
        self._known = {**OPTIONS[OptionSide.BOTH], **OPTIONS[side]}
        for name in self._values:
            if name not in self._known and name not in SPARK_OWN_OPTIONS:
                raise self._unknown(name)

    def has(self, name: str) -> bool:
        return bool(self._values.get(name))

    def text(self, name: str) -> str:
        return self._values.get(name) or self._known[name]

    def path(self) -> str:
        """The argument of `load` or `save`."""
        return self._values.get("path") or ""

    def flag(self, name: str) -> bool:
        found = _TRUTH.get(self.text(name).lower())
        if found is None:
            raise self.wrong(name, "true or false")
        return found

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def size(self, name: str) -> int:
        number, unit = _split_unit(self.text(name))
        if unit.removesuffix("b") not in _BYTES or number is None or number <= 0:
            raise self.wrong(name, "a number of bytes such as 128m")
        return int(number * _BYTES[unit.removesuffix("b")])

    def seconds(self, name: str) -> float:
        number, unit = _split_unit(self.text(name))
        if unit not in _SECONDS or number is None or number <= 0:
            raise self.wrong(name, "a time such as 90s, 15m or 24h")
        return number * _SECONDS[unit]

    def count(self, name: str, most: int) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and int(text) <= most):
            raise self.wrong(name, f"a number from 0 to {most}")
        return int(text)

    def choice(self, name: str, choices: type[E]) -> E:
        found = self.text(name).lower()
        if found not in list(choices):
            raise self.wrong(name, " or ".join(choices))
        return choices(found)

    def level(self) -> ConsistencyLevel:
        found = ConsistencyLevel.__members__.get(self.text("consistency").upper())
        if found is None:
            raise self.wrong("consistency", ", ".join(ConsistencyLevel.__members__))
        return found

    def wrong(self, name: str, expected: str) -> InvalidRequest:
        return InvalidRequest(f"option {name}={self.text(name)!r} is invalid", advice=f"it is {expected}")

    def _unknown(self, name: str) -> InvalidRequest:
        other = next((side for side, names in OPTIONS.items() if name in names), None)
        if other is not None:
            return InvalidRequest(f"option {name!r} is for {other}, not for {self.side}")
        return InvalidRequest(f"there is no option {name!r}", advice=suggest_name(name, tuple(self._known)))


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Advice for an unknown name: what may have been meant."""
    close = difflib.get_close_matches(name, known, n=1)
    there = ", ".join(sorted(known)[:40])
    return f"did you mean {close[0]!r}? There are: {there}" if close else f"there are: {there}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """How to reach a table."""

    contact: ContactPoints
    keyspace: str
    table: str
    level: ConsistencyLevel
    timeout_s: float
    uses_local_files: bool

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.table}"


def parse_table_access(given: OptionValues) -> TableAccess:
    keyspace, table = _named_table(given)
    security = CqlSecurity(
        username=given.text("username"),
        password=given.text("password"),
        is_tls=given.flag("ssl"),
        authority_pem=_authority(given),
        trusts_system=given.text("ssl.ca") == SYSTEM_AUTHORITIES,
        verifies=given.flag("ssl.verify"),
    )
    contact = ContactPoints(parse_contacts(given.text("contact")), security)
    return TableAccess(
        contact=contact,
        keyspace=keyspace,
        table=table,
        level=given.level(),
        timeout_s=given.seconds("timeout"),
        uses_local_files=given.flag("shortcut"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    access: TableAccess
    columns: tuple[str, ...]
    """Empty: all."""
    token: str
    writetimes: tuple[str, ...]
    ttls: tuple[str, ...]
    where: str
    takes_filters: bool
    split_bytes: int
    life_ms: int


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    given = OptionValues(options, OptionSide.READ)
    return ReadOptions(
        access=parse_table_access(given),
        columns=given.names("columns"),
        token=given.text("token"),
        writetimes=given.names("writetime"),
        ttls=given.names("ttl"),
        where=given.text("where"),
        takes_filters=given.flag("pushdown"),
        split_bytes=given.size("split_bytes"),
        life_ms=int(given.seconds("life") * 1000),
    )


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
        nulls=given.choice("nulls", NullHandling),
        ttl_s=_ttl_s(given),
        ttl_column=given.text("ttl_column"),
        op_column=given.text("op"),
        timestamps=given.choice("timestamps", TimestampPrecision),
        may_truncate=given.flag("confirm.truncate"),
        small_rows=given.count("small_rows", SMALL_ROWS_MAX),
        run_bytes=given.size("run_bytes"),
        life_ms=int(given.seconds("life") * 1000) if given.has("life") else 0,
    )


def _ttl_s(given: OptionValues) -> int | None:
    """A plain number is in seconds."""
    if not given.has("ttl"):
        return None
    text = given.text("ttl").strip()
    seconds = int(text) if text.isascii() and text.isdigit() else int(given.seconds("ttl"))
    if not 0 <= seconds <= TTL_S_MAX:
        raise given.wrong("ttl", f"at most {TTL_S_MAX} seconds")
    return seconds


def _named_table(given: OptionValues) -> tuple[str, str]:
    keyspace, table = given.text("keyspace"), given.text("table") or given.path()
    if not keyspace and "." in table:
        keyspace, _, table = table.partition(".")
    if not table or not keyspace:
        missing = "table" if not table else "keyspace"
        raise InvalidRequest(f"option {missing!r} is missing", advice="say which table: keyspace=shop, table=orders")
    return keyspace, table


def _authority(given: OptionValues) -> str:
    """The content and not the path: it is used on other machines too."""
    path = given.text("ssl.ca")
    if path in ("", SYSTEM_AUTHORITIES):
        return ""
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the file of option ssl.ca cannot be read: {error}") from None


def _split_unit(text: str) -> tuple[float | None, str]:
    stripped = text.strip().lower()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyz ")
    try:
        return float(number), stripped[len(number) :].strip()
    except ValueError:
        return None, ""

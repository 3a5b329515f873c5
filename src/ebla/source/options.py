"""All options of `format("ebla")`, for reading and for writing, in one table; and how they are parsed.

Spark passes them as strings with case-insensitive names. An unknown name is an error: a typing mistake in `consistency`
must not silently select the default.
"""

import difflib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest
from ebla.source.contact_points import ContactPoints, parse_contacts
from ebla.source.cql_client import CqlSecurity


class OptionSide(enum.StrEnum):
    BOTH = "reading and writing"
    READ = "reading"
    WRITE = "writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOption:
    name: str
    meaning: str
    default: str = ""
    side: OptionSide = OptionSide.BOTH


OPTIONS: tuple[SparkOption, ...] = (
    SparkOption(
        name="contact",
        meaning="CQL addresses of some nodes: host:port, separated by commas",
        default="127.0.0.1:9042",
    ),
    SparkOption(name="keyspace", meaning="the table's keyspace"),
    SparkOption(name="table", meaning="the table's name, or keyspace.table; load('keyspace.table') does the same"),
    SparkOption(name="username", meaning="the user, where nodes require a login"),
    SparkOption(name="password", meaning="the user's password"),
    SparkOption(name="ssl", meaning="true: the CQL port of the nodes uses TLS", default="false"),
    SparkOption(
        name="ssl.ca",
        meaning="file with the certificate of the cluster's authority, tls/authority.pem in a node's folder",
    ),
    SparkOption(
        name="ssl.verify",
        meaning="false: any certificate is accepted; an attacker in between can read the password",
        default="true",
    ),
    SparkOption(
        name="consistency",
        meaning="ONE, TWO, THREE, QUORUM, ALL, LOCAL_ONE, LOCAL_QUORUM or EACH_QUORUM",
        default="LOCAL_QUORUM",
    ),
    SparkOption(name="timeout", meaning="how long nodes may take to answer a call of the driver", default="60s"),
    SparkOption(
        name="shortcut",
        meaning="false: files of nodes on the same machine are not read or written directly",
        default="true",
    ),
    SparkOption(
        name="columns",
        meaning="columns to read, separated by commas; default: all",
        side=OptionSide.READ,
    ),
    SparkOption(
        name="token",
        meaning="name of an extra column with the token of each row's partition",
        side=OptionSide.READ,
    ),
    SparkOption(
        name="writetime",
        meaning="columns whose write times, in microseconds, are added as <column>_writetime",
        side=OptionSide.READ,
    ),
    SparkOption(
        name="ttl", meaning="columns whose remaining seconds to live are added as <column>_ttl", side=OptionSide.READ
    ),
    SparkOption(
        name="where",
        meaning="conditions in CQL on key columns and token(), applied by the nodes",
        side=OptionSide.READ,
    ),
    SparkOption(
        name="pushdown",
        meaning="true: push filters on keys down to nodes; only for a DataFrame that is used once, in one query",
        default="false",
        side=OptionSide.READ,
    ),
    SparkOption(name="split_bytes", meaning="about how many bytes a task reads", default="128m", side=OptionSide.READ),
    SparkOption(
        name="life",
        meaning="how long a DataFrame may be used again; its tickets expire then",
        default="24h",
        side=OptionSide.READ,
    ),
    SparkOption(
        name="job",
        meaning="a name for the write: the same job again writes with the same timestamp, and writes nothing once it "
        "was committed; default for a stream: the id in its checkpoint",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="nulls",
        meaning="unset: a null leaves the column as it is; delete: it deletes the value",
        default="unset",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="ttl",
        meaning="TTL of what is written; 0: none; default: the table's",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="ttl_column",
        meaning="column with the TTL of each row in seconds; where it is null, `ttl` applies",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="op",
        meaning="column with the operation of each row: upsert, delete or delete_partition",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="timestamps",
        meaning="exact: microseconds in a timestamp are an error; cut: they are dropped",
        default="exact",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="confirm.truncate",
        meaning="true: mode overwrite may delete all rows of the table first",
        default="false",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="small_rows",
        meaning="a task with at most so many rows leaves them to the driver, which writes them over CQL",
        default="1000",
        side=OptionSide.WRITE,
    ),
    SparkOption(
        name="run_bytes",
        meaning="how many bytes a task collects and sorts before it sends them",
        default="64m",
        side=OptionSide.WRITE,
    ),
    SparkOption(name="life", meaning="how long the job may take; default: the nodes' limit", side=OptionSide.WRITE),
)
"""The documentation shows this table."""

SPARK_OWN_OPTIONS = ("path", "checkpointlocation", "queryname", "outputmode", "mergeschema")
"""Options that Spark itself adds."""

_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class OptionValues:
    """The options of a user, for one side; every name is known. Raises `InvalidRequest`."""

    def __init__(self, options: Mapping[str, str], side: OptionSide) -> None:
        self.side = side
        self._values = {name.lower(): value for name, value in options.items()}
        self._known = {option.name: option for option in OPTIONS if option.side in (OptionSide.BOTH, side)}
        for name in self._values:
            if name not in self._known and name not in SPARK_OWN_OPTIONS:
                raise self._unknown(name)

    def has(self, name: str) -> bool:
        return bool(self._values.get(name))

    def text(self, name: str) -> str:
        return self._values.get(name) or self._known[name].default

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

    def level(self) -> ConsistencyLevel:
        found = ConsistencyLevel.__members__.get(self.text("consistency").upper())
        if found is None:
            raise self.wrong("consistency", ", ".join(ConsistencyLevel.__members__))
        return found

    def wrong(self, name: str, expected: str) -> InvalidRequest:
        return InvalidRequest(f"option {name}={self.text(name)!r} is invalid", advice=f"it is {expected}")

    def _unknown(self, name: str) -> InvalidRequest:
        other = next((option for option in OPTIONS if option.name == name), None)
        if other is not None:
            return InvalidRequest(f"option {name!r} is for {other.side}, not for {self.side}")
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
    if not path:
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

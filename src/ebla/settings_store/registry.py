"""Every setting of the cluster: its name, type, default, range, scope and help, and which values are valid.

A value is JSON. To add a setting, add a `Setting` to `SETTINGS` and its row to `docs/settings.md`. Numbers that are
validated together are fields of one setting: as two keys they could be changed on two sides of a partition, and merge
into a pair that was never validated.
"""

import difflib
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import msgspec

from ebla.model.errors import InvalidRequest
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings, lease_settings_problem

T = TypeVar("T")

USER_PREFIX = "user/"
"""Names below it are free, and so are their values."""
NODE_PREFIX = "node/"
STATUS_NAME = "status"
"""`node/<host>/status`: free text. After the host is removed, other nodes may write it."""
ACTOR_NAME = "actor"
"""`node/<host>/actor`: the actor of the host's changes."""
NODE_NAMES = (ACTOR_NAME, STATUS_NAME)


class Scope(enum.StrEnum):
    CLUSTER = "cluster"
    CLUSTER_AND_NODE = "cluster and node"
    """A node may have a value of its own, as `node/<host>/NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    name: str
    kind: Any
    """The type of its values. Ranges are `msgspec.Meta` annotations of it or of its fields."""
    default: T
    scope: Scope
    help: str
    problem: Callable[[T], str] = lambda _value: ""
    """What is wrong with a value whose fields are each valid; empty if nothing is."""

    def decode(self, value: bytes) -> T:
        """Raises `InvalidRequest`."""
        try:
            decoded: T = msgspec.json.decode(value, type=self.kind)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{_text(value)} is no value of {self.name}: {error}", advice=self.allowed()) from None
        if problem := self.problem(decoded):
            raise InvalidRequest(f"{_text(value)} is no value of {self.name}: {problem}", advice=self.allowed())
        return decoded

    def fields(self) -> tuple[str, ...]:
        is_struct = isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct)
        return self.kind.__struct_fields__ if is_struct else ()

    def allowed(self) -> str:
        return f"allowed: {describe_kind(self.kind)}"


def describe_kind(kind: Any) -> str:
    """A type with its range, for people."""
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.StructType):
        return ", ".join(f"{field.name} ({_describe(field.type)})" for field in info.fields)
    return _describe(info)


def _describe(info: msgspec.inspect.Type) -> str:
    match info:
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType(ge=low, le=high) if low is not None and high is not None:
            return f"{low:,} to {high:,}"
        case msgspec.inspect.IntType():
            return "a whole number"
        case msgspec.inspect.EnumType(cls=cls):
            return " or ".join(str(one.value) for one in cls)
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(str(one) for one in values)
        case _:
            return "text"


class SettingsPurge(msgspec.Struct, frozen=True, kw_only=True):
    interval_ms: Annotated[int, msgspec.Meta(ge=1_000, le=86_400_000)] = 60_000
    age_ms: Annotated[int, msgspec.Meta(ge=0, le=86_400_000)] = 300_000
    enabled: bool = True


SETTINGS_PURGE = Setting(
    name="settings_purge",
    kind=SettingsPurge,
    default=SettingsPurge(),
    scope=Scope.CLUSTER,
    help="when deleted settings are purged: time between two rounds, age of a deletion, and whether the timer runs",
)

LEASES = Setting(
    name="leases",
    kind=LeaseSettings,
    default=LeaseSettings(),
    scope=Scope.CLUSTER,
    help="leader leases: period, how long before its end the leader gives one up, time to stop, first pause",
    problem=lease_settings_problem,
)

JANITOR_DELAY_MS = Setting(
    name="janitor_delay_ms",
    kind=Annotated[int, msgspec.Meta(ge=1_000, le=600_000)],
    default=60_000,
    scope=Scope.CLUSTER,
    help="how long an unfinished operation on members waits for its caller, before the leader completes or undoes it",
)


class AutoFailoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = False
    after_ms: Annotated[int, msgspec.Meta(ge=5_000, le=3_600_000)] = 120_000
    """For how long a majority of the voters must report a host down."""
    max_count: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """Hosts to exclude before an operator resets the count."""


AUTO_FAILOVER = Setting(
    name="auto_failover",
    kind=AutoFailoverSettings,
    default=AutoFailoverSettings(),
    scope=Scope.CLUSTER,
    help="whether nodes that are down are excluded automatically, after which time, and how many until a reset",
)


class TopologySettings(msgspec.Struct, frozen=True, kw_only=True):
    peer_timeout_ms: Annotated[int, msgspec.Meta(ge=5_000, le=3_600_000)] = 60_000
    """For how long a new node, or a source of its data, may be unreachable before the join is rolled back."""
    request_grace_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 60_000
    """For how long a request that cannot run waits before it is cancelled."""
    ring_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 30_000
    """How long every node needs at most to learn of a new CDC generation; 0: it takes effect at once."""


TOPOLOGY = Setting(
    name="topology",
    kind=TopologySettings,
    default=TopologySettings(),
    scope=Scope.CLUSTER,
    help="node operations: when a silent node ends a join, when a request that cannot run is cancelled, and how long a "
    "CDC generation takes to reach every node",
)

SETTINGS: tuple[Setting[Any], ...] = (SETTINGS_PURGE, LEASES, JANITOR_DELAY_MS, AUTO_FAILOVER, TOPOLOGY)


@dataclass(frozen=True, slots=True)
class Name:
    """A key in parts: the setting's name, and the host whose own value it is."""

    name: str
    host: HostId | None = None


def node_key(host: HostId, name: str) -> str:
    return f"{NODE_PREFIX}{host}/{name}"


def split_key(key: str) -> Name | None:
    """None: `node/` is not followed by a host and a name."""
    if not key.startswith(NODE_PREFIX):
        return Name(key)
    host, _, name = key.removeprefix(NODE_PREFIX).partition("/")
    try:
        return Name(name, HostId(UUID(host))) if name else None
    except ValueError:
        return None


class Registry:
    """The known settings by name. Tests may have their own."""

    def __init__(self, settings: Iterable[Setting[Any]] = SETTINGS) -> None:
        self.settings = {setting.name: setting for setting in settings}

    def find(self, key: str) -> Setting[Any] | None:
        """The setting whose value is under this key; None for free names, and for names of a newer release."""
        parts = split_key(key)
        setting = None if parts is None else self.settings.get(parts.name)
        if setting is None or parts is None:
            return None
        return setting if parts.host is None or setting.scope is Scope.CLUSTER_AND_NODE else None

    def check_name(self, key: str) -> None:
        """Raises `InvalidRequest` if nothing can be written there."""
        parts = split_key(key)
        if parts is None:
            raise InvalidRequest(f"{key} is no setting", advice="a node's own setting is node/<host id>/NAME")
        if parts.host is None and parts.name.startswith(USER_PREFIX) and parts.name != USER_PREFIX:
            return
        if parts.host is not None and parts.name in NODE_NAMES:
            return
        setting = self.settings.get(parts.name)
        if setting is None:
            raise InvalidRequest(f"{parts.name} is no setting", advice=self._nearest(parts.name))
        if parts.host is not None and setting.scope is Scope.CLUSTER:
            raise InvalidRequest(f"{parts.name} has no value per node", advice=f"set {parts.name} for the cluster")

    def check(self, key: str, value: bytes) -> None:
        """Raises `InvalidRequest` if the name is unknown or this is no value of the setting."""
        self.check_name(key)
        setting = self.find(key)
        if setting is not None:
            setting.decode(value)

    def problem(self, key: str, value: bytes | None) -> str:
        """Why a stored value is not in effect; empty if it is, or if this release does not know the name."""
        setting = self.find(key)
        if setting is None or value is None:
            return ""
        try:
            setting.decode(value)
        except InvalidRequest as error:
            return error.message
        return ""

    def parse(self, key: str, text: str) -> bytes:
        """The value that an operator wrote. Raises `InvalidRequest`, also for a field that the setting has not."""
        self.check_name(key)
        setting = self.find(key)
        if setting is None:
            return text.encode()
        value = _json_of(setting.kind, text)
        decoded = setting.decode(value)
        for field in msgspec.json.decode(value) if setting.fields() else ():
            self._check_field(setting, field)
        return msgspec.json.encode(decoded)

    def parse_field(self, key: str, field: str, text: str, current: bytes | None) -> bytes:
        """The current value (None: the default) with one field replaced. Fields of a newer release stay."""
        self.check_name(key)
        setting = self.find(key)
        if setting is None or not setting.fields():
            raise InvalidRequest(f"{key} has no fields", advice=f"set {key} as a whole")
        self._check_field(setting, field)
        fields = msgspec.json.decode(current or msgspec.json.encode(setting.default), type=dict[str, msgspec.Raw])
        kind = next(one for one in msgspec.structs.fields(setting.kind) if one.name == field).type
        value = b"{%s}" % b",".join(
            b"%s:%s" % (msgspec.json.encode(name), one)
            for name, one in {**fields, field: msgspec.Raw(_json_of(kind, text))}.items()
        )
        setting.decode(value)
        return value

    def split_field(self, name: str) -> tuple[str, str]:
        """`NAME.FIELD` as name and field; the field is empty if all of it is a name."""
        key, dot, field = name.rpartition(".")
        setting = self.find(key) if dot else None
        return (key, field) if setting is not None and setting.fields() else (name, "")

    def _check_field(self, setting: Setting[Any], field: str) -> None:
        if field not in setting.fields():
            advice = _nearest_of(field, setting.fields())
            raise InvalidRequest(f"{setting.name} has no field {field}", advice=f"{advice}; {setting.allowed()}")

    def _nearest(self, name: str) -> str:
        return f"{_nearest_of(name, self.settings)}; names below {USER_PREFIX} are free"


def _nearest_of(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def _json_of(kind: Any, text: str) -> bytes:
    """Text may be written without quotes."""
    is_text = isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.StrType | msgspec.inspect.EnumType)
    return msgspec.json.encode(text) if is_text and not text.startswith('"') else text.encode()


def _text(value: bytes) -> str:
    return value[:256].decode(errors="replace")

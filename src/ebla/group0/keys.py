"""The map of group 0's keys: each prefix, what stands below it, and who may write it.

Values are array-like structs read and written through `ebla.model.stored_value`, so that a node of an older release
hands on fields it does not know.
"""

import enum
from dataclasses import dataclass

import msgspec

from ebla.group0.members import Member
from ebla.group0.membership import MEMBERS_PREFIX
from ebla.model.identity import HostId

UNFINISHED_OPERATION_KEY = "operation/unfinished"
PURGE_KEY = "purge/state"


class OperationKind(enum.StrEnum):
    """How whoever finds it unfinished repairs it."""

    ADD_LEARNER = "add_learner"
    """Taken back: the host is removed, and its row of the topology moves to `left` in the same transaction."""
    CHANGE_ROLES = "change_roles"
    """Repeated, as is a removal: both end in what was asked for, however often they are done."""
    REMOVE = "remove"


class UnfinishedOperation(msgspec.Struct, frozen=True, array_like=True):
    """There from the transaction of a topology operation until its membership change is done. All three steps name the
    lock, so whoever repairs it acquires another first and the former can do nothing more."""

    kind: OperationKind
    members: tuple[Member, ...]
    """As the membership change makes them."""
    lock: bytes


class PurgeState(msgspec.Struct, frozen=True, array_like=True):
    """How far deleted settings are purged. Times are those of the settings' vector clocks; neither ever goes back.

    `tentative_wall_us` is written first: from then on every node stamps its changes later than that, so nothing new can
    fall under the purge. `effective_wall_us` becomes the same once every member has sent out what it had."""

    tentative_wall_us: int = 0
    effective_wall_us: int = 0
    purger: HostId | None = None
    """Who wrote the tentative one. Only that node may make it effective: another may have begun anew since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPrefix:
    prefix: str
    structs: tuple[str, ...]
    """The names of what stands below it; none where the values are free or further rows tell."""
    holds: str
    owner: str


PREFIXES: tuple[KeyPrefix, ...] = (
    KeyPrefix(
        prefix=MEMBERS_PREFIX,
        structs=("Member",),
        holds="one per host id, removed ones too",
        owner="membership entries alone",
    ),
    KeyPrefix(
        prefix="cluster/identity",
        structs=("ClusterIdentity",),
        holds="the cluster's id, name and founder",
        owner="formation",
    ),
    KeyPrefix(
        prefix="topology/",
        structs=(),
        holds="one snapshot of the topology; one feed carries a whole version",
        owner="coordinator",
    ),
    KeyPrefix(
        prefix="topology/state",
        structs=("TopologyState",),
        holds="version, fence, transition state, features, upgrade",
        owner="coordinator",
    ),
    KeyPrefix(prefix="topology/node/", structs=("Node",), holds="one per host id, for ever", owner="coordinator"),
    KeyPrefix(
        prefix="topology/request/",
        structs=("NodeRequest", "GlobalRequest"),
        holds="what was asked for and how it went",
        owner="coordinator",
    ),
    KeyPrefix(
        prefix="topology/session/",
        structs=("Session",),
        holds="open sessions: stage, request, bulk job",
        owner="coordinator, bulk jobs",
    ),
    KeyPrefix(
        prefix="topology/cdc/",
        structs=("CdcGeneration", "CdcGenerationPart"),
        holds="generations, their data in parts",
        owner="coordinator",
    ),
    KeyPrefix(prefix="topology/keyspace/", structs=("Keyspace",), holds="one per keyspace", owner="schema changes"),
    KeyPrefix(prefix="topology/table/", structs=("Table",), holds="one per table id", owner="schema changes"),
    KeyPrefix(
        prefix="topology/tablets/",
        structs=("TabletMapRow", "TabletChunkRow", "TabletTransition"),
        holds="tablet maps in chunks, transitions, resize decisions",
        owner="coordinator",
    ),
    KeyPrefix(
        prefix=PURGE_KEY,
        structs=("PurgeState",),
        holds="up to when deleted settings are purged, and who is about to",
        owner="purge activity",
    ),
    KeyPrefix(
        prefix=UNFINISHED_OPERATION_KEY,
        structs=("UnfinishedOperation",),
        holds="the topology operation under way: its members and its lock",
        owner="atomic changes",
    ),
    KeyPrefix(
        prefix="jobs/",
        structs=("Job",),
        holds="work for the pipeline, waiting, running, and lately ended",
        owner="clients, the pipeline",
    ),
    KeyPrefix(
        prefix="pipeline/state",
        structs=("PipelineState",),
        holds="where the pipeline runs and whether it can",
        owner="the pipeline",
    ),
    KeyPrefix(
        prefix="writes/",
        structs=("WriteRecord",),
        holds="write jobs of Spark users by table and job id, lately ended ones too",
        owner="shards",
    ),
    KeyPrefix(
        prefix="user/",
        structs=(),
        holds="free for operators and tests: `ebla group0 put` writes here",
        owner="operators",
    ),
)


def prefix_of(key: str) -> KeyPrefix | None:
    """The row of the map a key belongs to, the longest that fits; None for a key that no release of this version
    writes."""
    rows = [row for row in PREFIXES if key.startswith(row.prefix)]
    return max(rows, key=lambda row: len(row.prefix), default=None)

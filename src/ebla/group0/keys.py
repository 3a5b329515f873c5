"""The map of group 0's keys: each prefix, what is stored under it, and who writes it.

Values are array-like structs, read and written through `ebla.model.stored_value`, so that a node of an older release
passes on fields it does not know.
"""

from typing import NamedTuple

import msgspec

from ebla.group0.operations import ENDED_OPERATION_PREFIX, UNFINISHED_OPERATION_KEY
from ebla.group0.start_record import START_PREFIX
from ebla.model.identity import HostId
from ebla.model.transaction import MEMBERS_PREFIX

PURGE_KEY = "purge/state"


class PurgeState(msgspec.Struct, frozen=True, array_like=True):
    """Up to when deleted settings are purged. Times are those of the settings' vector clocks; neither ever
    decreases.

    `tentative_wall_us` is written first: from then on every node stamps its changes later than that, so no new change
    falls under the purge. `effective_wall_us` follows once every member has sent out what it had."""

    tentative_wall_us: int = 0
    effective_wall_us: int = 0
    purger: HostId | None = None
    """The node that wrote the tentative time. Only that node may make it effective: another may have started over
    since. None: a node that lost its settings cleared it, so that the round in progress cannot become effective."""


class KeyPrefix(NamedTuple):
    prefix: str
    structs: tuple[str, ...]
    """The names of the structs stored under it; none if values are free-form or further rows list them."""
    holds: str
    owner: str


PREFIXES: tuple[KeyPrefix, ...] = (
    KeyPrefix(MEMBERS_PREFIX, ("Member",), "one per host id, removed ones too", "membership entries only"),
    KeyPrefix(START_PREFIX, ("StartRecord",), "the last start of each host, and its stores", "the host itself"),
    KeyPrefix("cluster/identity", ("ClusterIdentity",), "the cluster's id, name and founder", "formation"),
    KeyPrefix("topology/", (), "one snapshot of the topology; one feed carries a whole version", "coordinator"),
    KeyPrefix(
        "topology/state", ("TopologyState",), "version, fence, transition state, features, upgrade", "coordinator"
    ),
    KeyPrefix("topology/node/", ("Node",), "one per host id, forever", "coordinator"),
    KeyPrefix(
        "topology/request/", ("NodeRequest", "GlobalRequest"), "topology requests and their outcomes", "coordinator"
    ),
    KeyPrefix("topology/session/", ("Session",), "open sessions: stage, request, bulk job", "coordinator, bulk jobs"),
    KeyPrefix(
        "topology/cdc/", ("CdcGeneration", "CdcGenerationPart"), "generations, their data in parts", "coordinator"
    ),
    KeyPrefix("topology/keyspace/", ("Keyspace",), "one per keyspace", "schema changes"),
    KeyPrefix("topology/table/", ("Table",), "one per table id", "schema changes"),
    KeyPrefix(
        "topology/tablets/",
        ("TabletMapRow", "TabletChunkRow", "TabletTransition"),
        "tablet maps in chunks, transitions, resize decisions",
        "coordinator",
    ),
    KeyPrefix(PURGE_KEY, ("PurgeState",), "up to when deleted settings are purged, and by which node", "purge"),
    KeyPrefix(
        UNFINISHED_OPERATION_KEY,
        ("UnfinishedOperation",),
        "the operation in progress: its members and its lock",
        "operations",
    ),
    KeyPrefix(
        ENDED_OPERATION_PREFIX,
        ("EndedOperation",),
        "how the latest operations ended, and quarantined ones",
        "operations",
    ),
    KeyPrefix("jobs/", ("JobRecord",), "pipeline jobs: waiting, running, recently ended", "clients, the pipeline"),
    KeyPrefix("pipeline/state", ("PipelineState",), "where the pipeline runs and whether it can", "the pipeline"),
    KeyPrefix(
        "writes/",
        ("WriteJobRecord",),
        "write jobs of Spark users by table and job id, also recently ended ones",
        "shards",
    ),
    KeyPrefix("user/", (), "free for operators and tests: `ebla group0 put` writes here", "operators"),
)


def prefix_of(key: str) -> KeyPrefix | None:
    """The row a key belongs to, the longest that matches; None for a key that no release of this version writes."""
    rows = [row for row in PREFIXES if key.startswith(row.prefix)]
    return max(rows, key=lambda row: len(row.prefix), default=None)

"""The map of group 0's keys: each prefix, what stands below it, and who may write it.

Values are array-like structs read and written through `ebla.model.stored`, so that a node of an older release hands on
fields it does not know.
"""

from dataclasses import dataclass

from ebla.group0.membership import MEMBERS_PREFIX


@dataclass(frozen=True, slots=True)
class Prefix:
    prefix: str
    structs: tuple[str, ...]
    """The names of what stands below it; none where the values are free or nothing is stored yet."""
    holds: str
    owner: str


PREFIXES: tuple[Prefix, ...] = (
    Prefix(MEMBERS_PREFIX, ("Member",), "one per host id, removed ones too", "membership entries alone"),
    Prefix("cluster/identity", ("ClusterIdentity",), "the cluster's id, name and founder", "formation"),
    Prefix("topology/", (), "one snapshot of the topology; one feed carries a whole version", "coordinator"),
    Prefix("topology/state", ("TopologyState",), "version, fence, transition state, features, upgrade", "coordinator"),
    Prefix("topology/node/", ("Node",), "one per host id, for ever", "coordinator"),
    Prefix("topology/request/", ("NodeRequest", "GlobalRequest"), "what was asked for and how it went", "coordinator"),
    Prefix("topology/session/", ("Session",), "open sessions: stage, request, bulk job", "coordinator, bulk jobs"),
    Prefix("topology/cdc/", ("CdcGeneration", "CdcGenerationPart"), "generations, their data in parts", "coordinator"),
    Prefix("topology/keyspace/", ("Keyspace",), "one per keyspace", "schema changes"),
    Prefix("topology/table/", ("Table",), "one per table id", "schema changes"),
    Prefix(
        "topology/tablets/",
        ("TabletMapRow", "TabletChunkRow", "TabletTransition"),
        "tablet maps in chunks, transitions, resize decisions",
        "coordinator",
    ),
    Prefix("purge/", (), "reserved: the effective purge timestamp of settings", "purge activity"),
    Prefix("operation/", (), "reserved: the unfinished topology operation and its lock", "atomic changes"),
    Prefix("user/", (), "free for operators and tests: `ebla group0 put` writes here", "operators"),
)


def owner_of(key: str) -> Prefix | None:
    """The row of the map a key belongs to, the longest that fits; None for a key that no release of this version
    writes."""
    rows = [row for row in PREFIXES if key.startswith(row.prefix)]
    return max(rows, key=lambda row: len(row.prefix), default=None)

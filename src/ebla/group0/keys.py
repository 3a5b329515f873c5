"""The map of group 0's keys: each prefix, what stands below it, and who may write it.

Values are array-like structs read and written through `ebla.model.stored`, so that a node of an older release hands on
fields it does not know.
"""

from dataclasses import dataclass

from ebla.group0.membership import MEMBERS_PREFIX


@dataclass(frozen=True, slots=True)
class Prefix:
    prefix: str
    holds: str
    owner: str


PREFIXES: tuple[Prefix, ...] = (
    Prefix(MEMBERS_PREFIX, "one `Member` per host id, removed ones too", "membership entries alone"),
    Prefix("cluster/", "the cluster's id, name and creation", "formation"),
    Prefix("topology/", "nodes, requests, transition state, version, fence, features, upgrade state", "coordinator"),
    Prefix("schema/", "keyspaces and tables", "schema changes"),
    Prefix("tablets/", "tablet maps in chunks, transitions, resize decisions", "coordinator"),
    Prefix("sessions/", "open sessions: stage, request, bulk job", "coordinator, bulk jobs"),
    Prefix("cdc/", "CDC generations: data in parts, committed, unpublished", "coordinator"),
    Prefix("purge/", "the effective purge timestamp of settings", "purge activity"),
    Prefix("operation/", "the unfinished topology operation and its lock", "atomic changes"),
    Prefix("user/", "free for operators and tests: `ebla group0 put` writes here", "operators"),
)


def owner_of(key: str) -> Prefix | None:
    """The row of the map a key belongs to; None for a key that no release of this version writes."""
    return next((row for row in PREFIXES if key.startswith(row.prefix)), None)

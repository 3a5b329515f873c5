"""Counts the topology versions that running requests of a process hold.

A router holds the version it used until every replica has answered or timed out; a replica holds the version of a
write around its effect. A barrier on a version waits until nothing older is held: from then on, no request that was
routed by an older version can have an effect through this process.
"""

from ebla.model.identity import TopologyVersion


class VersionTracker:
    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[TopologyVersion, int] = {}

    def hold(self, version: TopologyVersion) -> None:
        self._counts[version] = self._counts.get(version, 0) + 1

    def release(self, version: TopologyVersion) -> bool:
        """Returns True if this was the last hold of its version, so that a waiting barrier should check again."""
        count = self._counts[version] - 1
        if count:
            self._counts[version] = count
            return False
        del self._counts[version]
        return True

    def oldest(self, newest: TopologyVersion) -> TopologyVersion:
        """The oldest version held, or `newest` if nothing older is held."""
        return min(min(self._counts, default=newest), newest)

"""Which versions of the topology the requests of a process still hold. Pure.

A router holds the version it routed by until every replica has answered or timed out, a replica holds the version of a
write around its effect. A barrier on a version waits until nothing older is held: from then on no request that was
routed by an older map can have an effect through this process.
"""

from ebla.model.identity import TopologyVersion


class VersionTracker:
    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[TopologyVersion, int] = {}

    def hold(self, version: TopologyVersion) -> None:
        self._counts[version] = self._counts.get(version, 0) + 1

    def release(self, version: TopologyVersion) -> bool:
        """True where this was the last one of its version, so that a barrier may have something to hear."""
        count = self._counts[version] - 1
        if count:
            self._counts[version] = count
            return False
        del self._counts[version]
        return True

    def oldest(self, newest: TopologyVersion) -> TopologyVersion:
        """The oldest version held, or `newest` where nothing older is."""
        return min(min(self._counts, default=newest), newest)

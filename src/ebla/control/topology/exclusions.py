"""Which hosts this node treats as excluded, and whether it is one of them.

A node learns of its own exclusion from group 0. One that is cut off from the leader may learn it from any other member:
the answer to a heartbeat names the version of the topology in which the sender is excluded. That counts until this node
has that version or a later one itself, which then says so or says that the node was included again.

INV-FAIL-3: a node that knows that it is excluded serves no rows. Barriers do not wait for it, so its view may be
arbitrarily old. Control lists its own host among those that are down; its shards and its CQL server stop by that.
"""

from collections.abc import Callable
from typing import Protocol

from ebla.model.identity import HostId, TopologyVersion
from ebla.observe.event_reporter import EventReporter
from ebla.topology.snapshot import Snapshot

NOT_EXCLUDED = TopologyVersion(0)


class KnownTopology(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...


class Exclusions:
    def __init__(self, own: HostId, topology: KnownTopology, report: EventReporter) -> None:
        self._own = own
        self._topology = topology
        self._report = report
        self._heard = NOT_EXCLUDED
        self._was_excluded = False
        self.on_change: Callable[[], None] = _nothing
        """Called when another member says that this node is excluded."""

    def hosts(self) -> tuple[HostId, ...]:
        """Also this node's own, if it is excluded. A change for this node is reported here, where it takes effect."""
        excluded = self._topology.snapshot.excluded_hosts
        if self._is_own_by_hearsay and self._own not in excluded:
            excluded = (*excluded, self._own)
        if (self._own in excluded) is not self._was_excluded:
            self._was_excluded = not self._was_excluded
            reason = self.why_own() or "it was recovered"
            self._report("node.excluded" if self._was_excluded else "node.included", {"reason": reason})
        return excluded

    def version_for(self, host: HostId) -> TopologyVersion:
        """For the answer to a heartbeat of this host: the version in which it is excluded."""
        snapshot = self._topology.snapshot
        return snapshot.version if host in snapshot.excluded_hosts else NOT_EXCLUDED

    def heard(self, version: TopologyVersion) -> None:
        """Another member answered that this node is excluded in that version."""
        if version > self._heard:
            self._heard = version
            self.on_change()

    def why_own(self) -> str:
        """For people; empty: this node is not excluded."""
        snapshot = self._topology.snapshot
        exclusion = snapshot.exclusion_of(self._own)
        if exclusion is None and self._own in snapshot.excluded_hosts:
            return f"{EXCLUDED}: by a request to remove or replace a node, see ebla topology"
        if exclusion is None:
            return "" if not self._is_own_by_hearsay else f"{EXCLUDED}; another member says so. {ADVICE}"
        how = "automatically" if exclusion.is_automatic else "by an operator"
        return f"{EXCLUDED}: {how}, on leader {exclusion.by}. {ADVICE}"

    @property
    def _is_own_by_hearsay(self) -> bool:
        return self._heard > self._topology.snapshot.version


EXCLUDED = "this node is excluded and serves no rows"
ADVICE = "When it is healthy, run: ebla recover HOST"


def _nothing() -> None:
    pass

"""The promises of leases and activities, checked in the world's own time from outside every node.

INV-LEASE-1  a node has at most one promise at a time, across restarts; a promise ends by its expiry, by its holder's
             abolish, or by the death of the holder's process
INV-LEASE-2  a leader counts a lease only while the node honours it
INV-LEASE-3  a node grants its lease again only after everything under the old one on that node has ended
INV-LEASE-4  once a root activity of a domain has started, none of that domain under an older leader passes its effect
             check
INV-LEASE-5  an order has effects only while the node's lease has the order's id and grant number
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ebla.leadership.messages import LeaseGrant, LeaseId
from ebla.model.identity import HostId


@dataclass(frozen=True, slots=True)
class ObservedPromise:
    grant: LeaseGrant
    until_s: float


@dataclass(slots=True)
class LeadershipRecord:
    """Each event returns the problem with it, or None."""

    _promises: dict[HostId, ObservedPromise] = field(default_factory=dict)
    _over: dict[LeaseId, None] = field(default_factory=dict)
    """Abolished by the holder, or its process died."""
    _domains: dict[str, int] = field(default_factory=dict)
    """The newest term under which a root activity of the domain has started."""

    def promised(
        self, node: HostId, grant: LeaseGrant, *, now_s: float, until_s: float, running: Sequence[LeaseGrant] = ()
    ) -> str | None:
        """The node answers `ok`. `running`: the leases under which something still runs on it."""
        before = self._promises.get(node)
        self._promises[node] = ObservedPromise(grant, until_s)
        if before is None or before.grant == grant:
            return None
        if any(one != grant for one in running):
            return f"INV-LEASE-3: {node} grants {grant} while activities run under {before.grant}"
        if now_s < before.until_s and before.grant.lease_id not in self._over:
            return f"INV-LEASE-1: {node} grants {grant} and has promised {before.grant} until {before.until_s:.3f}"
        return None

    def requested(self, node: HostId, grant: LeaseGrant, now_s: float) -> None:
        """A higher number under the same lease id: the holder has given the older lease up."""
        before = self._promises.get(node)
        if before is not None and before.grant.lease_id == grant.lease_id and before.grant.number < grant.number:
            self._promises[node] = ObservedPromise(before.grant, min(before.until_s, now_s))

    def ended_by_holder(self, lease_id: LeaseId) -> None:
        """The holder abolished the lease id, or its process died."""
        self._over[lease_id] = None

    def counted(self, node: HostId, grant: LeaseGrant, now_s: float) -> str | None:
        """A leader counts the lease now."""
        promise = self._promises.get(node)
        if promise is None or promise.grant != grant:
            return f"INV-LEASE-2: a leader counts {grant} of {node}, whose promise is {promise and promise.grant}"
        if now_s >= promise.until_s:
            return f"INV-LEASE-2: a leader counts {grant} of {node}, whose promise ended at {promise.until_s:.3f}"
        return None

    def started(self, domain: str, term: int) -> None:
        self._domains[domain] = max(term, self._domains.get(domain, 0))

    def acted(self, domain: str, term: int) -> str | None:
        """A root activity has passed its effect check."""
        newest = self._domains.get(domain, 0)
        return f"INV-LEASE-4: {domain} acts under term {term} after {newest}" if term < newest else None

    def order_acted(self, node: HostId, grant: LeaseGrant) -> str | None:
        promise = self._promises.get(node)
        if promise is None or promise.grant != grant:
            return f"INV-LEASE-5: an order of {grant} acts on {node}, whose lease is {promise and promise.grant}"
        return None

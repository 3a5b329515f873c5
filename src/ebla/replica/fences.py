"""The fence of a shard: requests routed by a version below it are refused.

It is checked three times. On arrival, so that outdated requests cost nothing. Just before the effect, without an await
in between, because the request may have waited for a layer or a version. And again after the effect, once it is
durable: a fence that rose meanwhile belongs to a barrier that did not wait for this write, so the write must not be
acknowledged, although it was made. INV-ROWS-1: no write has an effect below the fence of a version whose barrier
returned on the node.
"""

from ebla.feed.topology_view import TopologyView
from ebla.model.errors import Outcome, Stale
from ebla.model.identity import TopologyVersion


class OvertakenByFence(Stale):
    """The fence rose while the write was being made: it is stored, but must not be relied on."""

    outcome = Outcome.UNKNOWN


class Fences:
    __slots__ = ("_view",)

    def __init__(self, view: TopologyView) -> None:
        self._view = view

    def on_arrival(self, version: TopologyVersion) -> Stale | None:
        """Why a request of this version is refused; None: it is accepted."""
        fence = self._view.current.fence
        return None if version >= fence else _stale(version, fence)

    def before_effect(self, version: TopologyVersion) -> Stale | None:
        fence = self._view.current.fence
        return None if version >= fence else _stale(version, fence)

    def after_effect(self, version: TopologyVersion) -> Stale | None:
        """Why a write that was made must not be acknowledged."""
        fence = self._view.current.fence
        if version >= fence:
            return None
        return OvertakenByFence(f"version {version} was fenced off while the write was made; the fence is {fence}")

    def after_read(self, version: TopologyVersion) -> Stale | None:
        fence = self._view.current.fence
        return None if version >= fence else _stale(version, fence)


def _stale(version: TopologyVersion, fence: TopologyVersion) -> Stale:
    return Stale(f"version {version} of the topology is fenced off; the fence is {fence}", advice="refresh and retry")

"""What the bulk process does with versions of the topology: it keeps the book of sessions and says what it holds.

It has no replicas to make ready. It is part of every barrier all the same: a piece of an operation that is over may
be running here, under a guard, and the barrier waits until that is released.
"""

from collections.abc import Callable

from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView, View
from ebla.wire.feed_messages import ChildReport


class SessionFollower:
    """`wire.topology_feed.Follower`."""

    def __init__(self, name: str, pid: int, view: TopologyView) -> None:
        self._name = name
        self._pid = pid
        self._view = view
        self.guards: SessionGuards | None = None
        """Set before the first version comes."""
        self.on_installed: Callable[[], None] = _nothing

    async def prepare(self, view: View, before: View | None) -> None:
        """Nothing: no file here belongs to a version."""

    def on_view_installed(self, view: View) -> None:
        assert self.guards is not None
        self.guards.on_view_installed(view)
        self.on_installed()

    def report_of(self, view: View) -> ChildReport:
        assert self.guards is not None, "a report speaks of what was installed"
        return ChildReport(
            name=self._name,
            pid=self._pid,
            version=view.version,
            fence=view.fence,
            oldest_running=self._view.versions.oldest(view.version),
            pending_replicas_open=True,
            closing_sessions=self.guards.closing,
        )


def _nothing() -> None:
    pass

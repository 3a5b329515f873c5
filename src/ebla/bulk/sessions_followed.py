"""What the bulk process does with versions of the topology: it keeps the book of sessions and says what it holds.

It has no replicas to make ready. It is part of every barrier all the same: a piece of an operation that is over may
be running here, under a guard, and the barrier waits until that is released.
"""

from ebla.topology.sessions import SessionBook
from ebla.wire.feed_messages import ChildReport
from ebla.wire.topology_view import TopologyView, View


class SessionsFollowed:
    """`wire.topology_feed.Follower`."""

    def __init__(self, name: str, pid: int, view: TopologyView) -> None:
        self._name = name
        self._pid = pid
        self._view = view
        self.book: SessionBook | None = None
        """None until the first version came. Whoever takes or releases a guard replaces it, and says so to the
        follower."""

    async def prepare(self, view: View, before: View | None) -> None:
        """Nothing: no file here belongs to a version."""

    def installed(self, view: View) -> None:
        book = self.book or SessionBook(view.revision)
        self.book = book.followed(view.snapshot, view.revision)

    def report_of(self, view: View) -> ChildReport:
        assert self.book is not None, "a report speaks of what was installed"
        return ChildReport(
            self._name,
            self._pid,
            view.version,
            view.fence,
            self._view.versions.oldest(view.version),
            pending_open=True,
            closing_sessions=tuple(self.book.closing()),
        )

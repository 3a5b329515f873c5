"""The topology as a process has received it from control: answers of the feed in, snapshots out. Never waits."""

from ebla.model.transaction import Revision
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import FeedEntry, advance
from ebla.wire.feed_messages import FeedAnswer, FeedChange


class TopologyMirror:
    """Each snapshot is a committed version: an answer holds whole transactions, and the pages of a whole state take
    effect with the last one."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.revision: Revision | None = None
        self._pages: dict[str, FeedChange] = {}
        self._pages_of: Revision | None = None
        self._last_key = ""
        self._starts_over = False

    def position(self) -> tuple[Revision | None, str]:
        """What to request next: `after` and `after_key`."""
        if self._pages_of is not None:
            return self._pages_of, self._last_key
        return (None if self._starts_over else self.revision), ""

    def start_over(self) -> None:
        """Requests the whole state next. The current snapshot stays until it has arrived."""
        self._drop_pages()
        self._starts_over = True

    def take(self, answer: FeedAnswer) -> bool:
        """Whether snapshot or revision are new. Raises `Corruption` if a row cannot be read."""
        if answer.reset:
            return self._take_page(answer)
        self._drop_pages()
        if self.snapshot is None or self._starts_over or not self._is_ahead(answer.revision):
            return False
        if answer.changes:
            self.snapshot = advance(self.snapshot, map(_entry, answer.changes))
        self.revision = answer.revision
        return True

    def _take_page(self, answer: FeedAnswer) -> bool:
        if answer.revision != self._pages_of:  # the first page, or control started over
            self._drop_pages()
            self._pages_of = answer.revision
        for change in answer.changes:
            self._pages[change.key] = change
            self._last_key = change.key
        if answer.more:
            return False
        pages = self._pages
        self._drop_pages()
        self._starts_over = False
        if not self._is_ahead(answer.revision):
            return False
        whole = advance(Snapshot(), map(_entry, pages.values()))
        # The same state again, from a restarted control: what was computed for the old object is still valid.
        self.snapshot = self.snapshot if self.snapshot == whole else whole
        self.revision = answer.revision
        return True

    def _is_ahead(self, revision: Revision) -> bool:
        """A control process that just started may lag behind its predecessor. A child never goes back: it keeps its
        state until control has caught up. Revisions of another history are not comparable."""
        known = self.revision
        return known is None or known.history != revision.history or revision.index > known.index

    def _drop_pages(self) -> None:
        self._pages = {}
        self._pages_of = None
        self._last_key = ""


def _entry(change: FeedChange) -> FeedEntry:
    return FeedEntry(change.key, change.value, change.revision)

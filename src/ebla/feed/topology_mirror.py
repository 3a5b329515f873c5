"""The topology as a child of control has been told it so far: answers of the feed in, snapshots out. Never waits."""

from ebla.model.transaction import Revision
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import FeedEntry, advance
from ebla.wire.feed_messages import FeedAnswer, FeedChange


class TopologyMirror:
    """Each snapshot is a committed version: an answer holds whole transactions, and the pages of a whole state count
    once the last one is there."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.revision: Revision | None = None
        self._pages: dict[str, FeedChange] = {}
        self._pages_of: Revision | None = None
        self._last_key = ""
        self._starts_over = False

    def position(self) -> tuple[Revision | None, str]:
        """What to ask for next: `after` and `after_key` of a request."""
        if self._pages_of is not None:
            return self._pages_of, self._last_key
        return (None if self._starts_over else self.revision), ""

    def start_over(self) -> None:
        """Asks for the whole state next. What is there stays until it has come."""
        self._drop_pages()
        self._starts_over = True

    def take(self, answer: FeedAnswer) -> bool:
        """Whether snapshot or revision are new. Raises `Corruption` where a row cannot be read."""
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
        if answer.revision != self._pages_of:  # the first page, or control began anew
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
        # The same again, from a control that started anew: what was worked out for the old one still holds.
        self.snapshot = self.snapshot if self.snapshot == whole else whole
        self.revision = answer.revision
        return True

    def _is_ahead(self, revision: Revision) -> bool:
        """A control that just started may lag behind what its predecessor said. Time does not run backwards for a
        child: it stays where it is until control has caught up. Another history has times of its own."""
        known = self.revision
        return known is None or known.history != revision.history or revision.index > known.index

    def _drop_pages(self) -> None:
        self._pages = {}
        self._pages_of = None
        self._last_key = ""


def _entry(change: FeedChange) -> FeedEntry:
    return FeedEntry(change.key, change.value, change.revision)

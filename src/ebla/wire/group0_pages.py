"""Assembles the pages of group 0's answers. Pure: feed it each answer, send the next request it returns."""

import msgspec

from ebla.model.errors import Unavailable
from ebla.model.transaction import Revision
from ebla.wire.group0_messages import (
    Group0ReadAnswer,
    Group0ReadRequest,
    KeyValue,
    WatchAnswer,
    WatchedChange,
    WatchRequest,
)

RESTARTS_MAX = 20
"""A node that forgets the answer it has begun to send, again and again, has no room for it."""


class _Pager:
    def __init__(self) -> None:
        self._restarts = 0

    def _count_restart(self) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            raise Unavailable(f"the pages of a large answer were restarted {self._restarts} times", advice="ask less")


class ReadPager(_Pager):
    """`while (whole := pages.take(ask(pages.request()))) is None: pass`"""

    def __init__(self, request: Group0ReadRequest) -> None:
        super().__init__()
        self._request = request
        self._at: Revision | None = None
        self._found: list[KeyValue] = []

    def request(self) -> Group0ReadRequest:
        return msgspec.structs.replace(self._request, at=self._at, start=len(self._found))

    def take(self, answer: Group0ReadAnswer) -> Group0ReadAnswer | None:
        """The whole answer, once it is complete."""
        if answer.revision != self._at:
            self._count_restart()
            self._at, self._found = answer.revision, []
        self._found += answer.found
        return None if answer.more else Group0ReadAnswer(answer.revision, tuple(self._found))


class WatchPager(_Pager):
    """Follows a prefix. Changes are returned as they arrive; a reset only when all of its pages have."""

    def __init__(self, prefix: str, after: Revision | None = None) -> None:
        super().__init__()
        self._prefix = prefix
        self.after = after
        self._content: list[WatchedChange] = []

    def request(self, wait_ms: int) -> WatchRequest:
        return WatchRequest(prefix=self._prefix, after=self.after, wait_ms=wait_ms, start=len(self._content))

    def take(self, answer: WatchAnswer) -> WatchAnswer | None:
        """The answer, or all pages of a reset as one; None while there are more to come."""
        if not answer.reset:
            self.after = answer.revision
            return answer
        if answer.revision != self.after or not self._content:
            self._count_restart()
            self._content = []
        self.after = answer.revision
        self._content += answer.changes
        if answer.more:
            return None
        content, self._content = self._content, []
        self._restarts = 0
        return WatchAnswer(revision=answer.revision, reset=True, changes=tuple(content))

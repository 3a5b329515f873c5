"""The last versions of the topology that a shard has seen, with what changed."""

from collections import deque
from collections.abc import Iterable

from ebla.feed.topology_view import View
from ebla.topology.snapshot import Snapshot

VERSIONS_KEPT_MAX = 200


class VersionHistory:
    def __init__(self) -> None:
        self._seen: deque[tuple[int, int, str]] = deque(maxlen=VERSIONS_KEPT_MAX)
        self._before: Snapshot | None = None

    def note(self, view: View, wall_us: int) -> None:
        before, self._before = self._before, view.snapshot
        if before is None or before.version != view.version:
            self._seen.append((wall_us, int(view.version), _words(before, view.snapshot)))

    def rows(self) -> Iterable[tuple[int, int, str]]:
        return tuple(self._seen)


def _words(before: Snapshot | None, after: Snapshot) -> str:
    if before is None:
        return f"version {after.version}, as this shard found it"
    parts = [
        f"{len(here)} {what}" if len(here) != len(there) else f"{what} changed"
        for what, there, here in (
            ("nodes", before.nodes, after.nodes),
            ("keyspaces", before.keyspaces, after.keyspaces),
            ("tables", before.tables, after.tables),
            ("sessions", before.sessions, after.sessions),
        )
        if there is not here
    ]
    if before.tablets is not after.tablets:
        parts.append("tablets changed")
    if before.transition is not after.transition:
        parts.append(f"in {after.transition or 'rest'}")
    return f"version {after.version}: {', '.join(parts) or 'a step'}"

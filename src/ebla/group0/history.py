"""Lines of history. Quorum failover starts a new line; whatever the old one wrote afterwards is not part of it."""

import enum

import msgspec

from ebla.model.identity import HistoryId
from ebla.model.transaction import Revision


class HistoryStart(msgspec.Struct, frozen=True, array_like=True):
    """A history begins after `parent_end` of the one before it; the first has index 0 there."""

    history: HistoryId
    parent_end: int


class RevisionOrder(enum.Enum):
    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    UNKNOWN = "unknown"


def compare_revisions(chain: tuple[HistoryStart, ...], left: Revision, right: Revision) -> RevisionOrder:
    """How `left` stands to `right` along the chain, oldest history first.

    Unknown where a history is not in the chain, or where an index lies after the point at which its history was
    abandoned: such a write is on the side that was given up, and is neither older nor newer than ours.
    """
    places = [_place(chain, revision) for revision in (left, right)]
    if places[0] is None or places[1] is None:
        return RevisionOrder.UNKNOWN
    if places[0] == places[1]:
        return RevisionOrder.EQUAL
    return RevisionOrder.OLDER if places[0] < places[1] else RevisionOrder.NEWER


def history_at(chain: tuple[HistoryStart, ...], index: int) -> HistoryId:
    """The history that was current at an index."""
    for start in reversed(chain):
        if start.parent_end < index:
            return start.history
    return chain[0].history


def _place(chain: tuple[HistoryStart, ...], revision: Revision) -> tuple[int, int] | None:
    for number, start in enumerate(chain):
        if start.history != revision.history:
            continue
        abandoned_at = chain[number + 1].parent_end if number + 1 < len(chain) else None
        if abandoned_at is not None and revision.index > abandoned_at:
            return None
        return (number, revision.index)
    return None

"""Revisions compare along the chain of histories."""

import uuid

import pytest

from ebla.group0.history import HistoryStart, RevisionOrder, compare_revisions
from ebla.model.identity import HistoryId
from ebla.model.transaction import Revision

FIRST, SECOND, FOREIGN = (HistoryId(uuid.UUID(int=number)) for number in (1, 2, 3))
CHAIN = (HistoryStart(FIRST, 0), HistoryStart(SECOND, 10))


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ((FIRST, 3), (FIRST, 3), RevisionOrder.EQUAL),
        ((FIRST, 3), (FIRST, 4), RevisionOrder.OLDER),
        ((SECOND, 11), (FIRST, 10), RevisionOrder.NEWER),
        ((FIRST, 10), (SECOND, 11), RevisionOrder.OLDER),
        ((FIRST, 11), (SECOND, 12), RevisionOrder.UNKNOWN),
        ((FOREIGN, 1), (FIRST, 1), RevisionOrder.UNKNOWN),
    ],
)
def test_order(left: tuple[HistoryId, int], right: tuple[HistoryId, int], order: RevisionOrder) -> None:
    assert compare_revisions(CHAIN, Revision(*left), Revision(*right)) is order

"""Joining pages: in order, from the start if the node starts again, and not for ever."""

import uuid

import pytest

from ebla.model.errors import Unavailable
from ebla.model.identity import HistoryId
from ebla.model.transaction import Revision
from ebla.wire.group0_messages import Group0ReadAnswer, Group0ReadRequest, KeyValue, WatchAnswer, WatchedChange
from ebla.wire.group0_pages import RESTARTS_MAX, ReadPager, WatchPager

HISTORY = HistoryId(uuid.UUID(int=7))


def at(index: int) -> Revision:
    return Revision(HISTORY, index)


def read(index: int, names: str, *, more: bool) -> Group0ReadAnswer:
    return Group0ReadAnswer(at(index), tuple(KeyValue(name, b"", at(1)) for name in names), more)


def reset(index: int, names: str, *, more: bool) -> WatchAnswer:
    return WatchAnswer(
        revision=at(index), reset=True, changes=tuple(WatchedChange(name, b"", 1) for name in names), more=more
    )


def changes_at(index: int, names: str) -> WatchAnswer:
    return WatchAnswer(
        revision=at(index), reset=False, changes=tuple(WatchedChange(name, b"", index) for name in names)
    )


def keys(answer: Group0ReadAnswer | WatchAnswer | None) -> str:
    assert answer is not None
    rows = answer.found if isinstance(answer, Group0ReadAnswer) else answer.changes
    return "".join(row.key for row in rows)


def test_a_read_asks_for_what_follows_until_it_has_all() -> None:
    pages = ReadPager(Group0ReadRequest(prefixes=("",), quorum=False))
    assert pages.request() == Group0ReadRequest(keys=(), prefixes=("",), quorum=False)
    assert pages.take(read(5, "abc", more=True)) is None
    assert pages.request() == Group0ReadRequest(keys=(), prefixes=("",), quorum=False, at=at(5), start=3)
    assert pages.take(read(5, "d", more=True)) is None
    assert pages.request().start == 4
    assert keys(pages.take(read(5, "ef", more=False))) == "abcdef"


def test_a_read_that_is_begun_anew_forgets_what_it_had() -> None:
    pages = ReadPager(Group0ReadRequest(prefixes=("",)))
    assert pages.take(read(5, "abc", more=True)) is None
    assert pages.take(read(6, "xy", more=True)) is None
    assert pages.request() == Group0ReadRequest(keys=(), prefixes=("",), quorum=True, at=at(6), start=2)
    whole = pages.take(read(6, "z", more=False))
    assert keys(whole) == "xyz"
    assert whole is not None
    assert whole.revision == at(6)


def test_a_reset_comes_whole_and_is_followed_from_its_revision() -> None:
    pages = WatchPager("user/")
    assert pages.request(9).after is None
    assert pages.take(reset(5, "ab", more=True)) is None
    assert (pages.request(9).after, pages.request(9).start) == (at(5), 2)
    assert pages.take(reset(7, "xy", more=True)) is None, "started again"
    assert pages.request(9).start == 2
    assert keys(pages.take(reset(7, "z", more=False))) == "xyz"
    assert (pages.request(9).after, pages.request(9).start) == (at(7), 0)
    assert keys(pages.take(changes_at(8, "k"))) == "k"
    assert pages.after == at(8)
    assert keys(pages.take(reset(8, "kl", more=False))) == "kl", "the feed did not reach back, nothing changed since"


def test_beginnings_are_bounded() -> None:
    reading, watching = ReadPager(Group0ReadRequest(prefixes=("",))), WatchPager("")
    for index in range(RESTARTS_MAX):
        assert reading.take(read(index, "a", more=True)) is None
        assert watching.take(reset(index, "a", more=True)) is None
    with pytest.raises(Unavailable):
        reading.take(read(99, "a", more=True))
    with pytest.raises(Unavailable):
        watching.take(reset(99, "a", more=True))

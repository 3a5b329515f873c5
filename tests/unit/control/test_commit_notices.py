"""Commit notices wait a moment, give way to what covers them, and are never lost otherwise."""

from ebla.control.commit_notices import EAGER_MS, CommitNotices
from ebla.raft.messages import Append, Entry, Heartbeat, PeerId

ONE, TWO, THREE = PeerId(1), PeerId(2), PeerId(3)


def append(prev: int, commit: int, entries: int = 0, *, to: PeerId = TWO, term: int = 4) -> Append:
    new = tuple(Entry(prev + 1 + number, term, b"x") for number in range(entries))
    return Append(ONE, to, term, prev, term, commit, new)


def test_a_notice_waits_and_everything_else_leaves() -> None:
    notices = CommitNotices()
    full, bare, beat = append(6, 5, 1, to=THREE), append(6, 6), Heartbeat(ONE, TWO, 4)
    assert notices.sift([full, bare, beat], 0) == [full, beat]
    assert notices.holds
    assert notices.take() == [bare]
    assert not notices.holds


def test_a_later_append_takes_the_place_of_a_notice() -> None:
    notices = CommitNotices()
    notices.sift([append(6, 6)], 0)
    later = append(6, 6, 2)
    assert notices.sift([later], 0) == [later]
    assert notices.take() == []
    notices.sift([append(8, 7)], 0)
    assert notices.sift([append(8, 8)], 0) == []
    assert notices.take() == [append(8, 8)]


def test_an_append_that_tells_less_leaves_behind_the_notice() -> None:
    for less in (append(4, 6, 1), append(6, 5, 1), append(6, 6, 1, term=3)):
        notices = CommitNotices()
        notices.sift([append(6, 6)], 0)
        assert notices.sift([less], 0) == [append(6, 6), less]


def test_a_peer_that_waits_for_its_proposals_is_told_at_once_for_a_while() -> None:
    notices = CommitNotices()
    notices.hurry(TWO, 1_000)
    assert notices.sift([append(6, 6)], 1_000 + EAGER_MS - 1) == [append(6, 6)]
    assert notices.sift([append(6, 6, to=THREE)], 1_001) == []
    assert notices.sift([append(7, 7)], 1_000 + EAGER_MS) == []

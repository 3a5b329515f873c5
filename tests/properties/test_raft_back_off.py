"""Log back-off against a naive one that steps back entry by entry: it ends at the same index, and not later."""

from hypothesis import given
from hypothesis import strategies as st

from ebla.raft.log import Log
from ebla.raft.messages import Entry, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions
from ebla.raft.progress import PeerProgress

_OPTIONS = RaftOptions(peer=PeerId(1), inflight_messages_max=8)


@st.composite
def log_pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The terms of a leader's and a follower's log as Raft can make them: a shared prefix, then different terms.

    A term has one leader, which appends to one log, so no term appears in both tails; terms grow along a log.
    """
    shared = draw(st.lists(st.integers(0, 1), max_size=8))
    terms = [1]
    for step in shared:
        terms.append(terms[-1] + step)
    later = draw(st.lists(st.booleans(), max_size=6))
    leader, follower = list(terms), list(terms)
    term = terms[-1]
    for is_leaders in later:
        term += 1
        tail = leader if is_leaders else follower
        tail.extend([term] * draw(st.integers(1, 4)))
    return leader, follower


def _log(terms: list[int], base: int) -> Log:
    """`terms[0]` is the entry at index 1; everything up to `base` is in the snapshot."""
    entries = [Entry(index=index, term=term) for index, term in enumerate(terms, 1)]
    return Log(SnapshotMeta(base, terms[base - 1]), entries[base:], apply_bytes_max=1 << 20)


def _naive(leader: Log, follower: Log) -> int:
    index = min(leader.last_index, follower.last_index)
    while index > follower.base_index and leader.term_at(index) != follower.term_at(index):
        index -= 1
    return index


@given(log_pairs(), st.data())
def test_back_off_finds_where_the_logs_part(pair: tuple[list[int], list[int]], data: st.DataObject) -> None:
    leader, follower = _log(pair[0], 1), _log(pair[1], 1)
    progress = PeerProgress(_OPTIONS, next_index=leader.last_index + 1, is_learner=False, recently_active=True)
    probes = 0
    while True:
        probes += 1
        prev = progress.next_index - 1
        term = leader.term_at(prev)
        assert term is not None
        if follower.matches(prev, term):
            break
        hint_index, hint_term = follower.agreement_hint(min(prev, follower.last_index), term)
        probe, _ = leader.agreement_hint(hint_index, hint_term)
        # A stale answer changes nothing.
        stale = data.draw(st.integers(0, leader.last_index))
        if stale != prev:
            before = progress.next_index
            assert not progress.rejected(stale, data.draw(st.integers(0, leader.last_index)))
            assert progress.next_index == before
        assert progress.rejected(prev, probe)
        assert progress.next_index - 1 < prev, "each refusal goes back"
    assert progress.next_index - 1 == _naive(leader, follower)
    terms = len(set(pair[0]) | set(pair[1]))
    assert probes <= terms + 1, "one refusal for each term, not for each entry"


@given(log_pairs())
def test_append_makes_the_logs_equal(pair: tuple[list[int], list[int]]) -> None:
    leader, follower = _log(pair[0], 1), _log(pair[1], 1)
    at = _naive(leader, follower)
    term = leader.term_at(at)
    assert term is not None
    sent = leader.slice(at + 1, leader.last_index, 1 << 20)
    assert follower.try_append(at, term, sent) == leader.last_index
    shared = range(1, leader.last_index + 1)
    assert [follower.term_at(index) for index in shared] == [leader.term_at(index) for index in shared]


@given(log_pairs(), st.integers(0, 12), st.integers(0, 12))
def test_delayed_append_cuts_nothing(pair: tuple[list[int], list[int]], start: int, count: int) -> None:
    """Any piece of a log that is there already changes nothing."""
    log = _log(pair[0], 1)
    prev = min(1 + start, log.last_index)
    sent = log.slice(prev + 1, min(prev + count, log.last_index), 1 << 20)
    last, term = log.last_index, log.term_at(prev)
    assert term is not None
    assert log.try_append(prev, term, sent) == prev + len(sent)
    assert log.last_index == last
    assert log.writing == last

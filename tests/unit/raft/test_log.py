"""The log in memory: bounds, replaced entries, restarts."""

import pytest

from ebla.raft.log import ENTRY_OVERHEAD_BYTES, Log
from ebla.raft.messages import Entry, EntryKind, SnapshotMeta

NO_BOUND = 1 << 40


def _entries(first: int, *terms: int, data: bytes = b"") -> tuple[Entry, ...]:
    return tuple(Entry(index=first + position, term=term, data=data) for position, term in enumerate(terms))


def _log(*terms: int, base: int = 10, apply_bytes_max: int = NO_BOUND) -> Log:
    return Log(SnapshotMeta(base, 1), _entries(base + 1, *terms), apply_bytes_max=apply_bytes_max)


def test_terms_at_the_edges() -> None:
    log = _log(1, 2)
    assert [log.term_at(index) for index in (9, 10, 11, 12, 13)] == [None, 1, 1, 2, None]
    assert (log.first_index, log.last_index, log.last_term) == (11, 12, 2)


def test_slice_is_cut_by_bytes_but_never_to_nothing() -> None:
    log = Log(SnapshotMeta(10, 1), _entries(11, 1, 1, 1, data=b"1234"), apply_bytes_max=NO_BOUND)
    size = ENTRY_OVERHEAD_BYTES + 4
    assert len(log.slice(11, 13, NO_BOUND)) == 3
    assert len(log.slice(11, 13, 3 * size)) == 3
    assert len(log.slice(11, 13, 3 * size - 1)) == 2
    assert len(log.slice(12, 13, 1)) == 1
    assert log.slice(14, 13, NO_BOUND) == ()
    assert log.size_of(log.slice(12, 13, NO_BOUND)) == 2 * size


def test_sizes_survive_compaction() -> None:
    log = Log(SnapshotMeta(10, 1), _entries(11, 1, 1, 1, data=b"1234"), apply_bytes_max=NO_BOUND)
    log.commit_to(12)
    log.take_committed(unstable_too=False)
    log.applied_to(12, 0)
    log.snapshot_taken(SnapshotMeta(12, 1))
    log.compact(11)
    assert log.size_of(log.slice(12, 13, NO_BOUND)) == 2 * (ENTRY_OVERHEAD_BYTES + 4)
    assert (log.base_index, log.base_term, log.first_index) == (11, 1, 12)


def test_compaction_keeps_the_term_before_the_first_entry() -> None:
    log = _log(1, 2, 3, 3)
    log.commit_to(13)
    log.take_committed(unstable_too=False)
    log.snapshot_taken(SnapshotMeta(13, 3))
    log.compact(12)
    assert [log.term_at(index) for index in (11, 12, 13)] == [None, 2, 3]
    log.compact(13)
    assert (log.term_at(13), log.term_at(14)) == (3, 3)


def test_compaction_needs_a_snapshot() -> None:
    log = _log(1, 1)
    log.commit_to(12)
    with pytest.raises(AssertionError, match="snapshot"):
        log.compact(12)


def test_a_committed_entry_is_never_replaced() -> None:
    log = _log(1, 1)
    log.commit_to(11)
    with pytest.raises(AssertionError, match="committed"):
        log.append(_entries(11, 2))


def test_replaced_entries_are_written_again() -> None:
    log = _log(1, 1)
    log.append(_entries(13, 1))
    assert log.take_unwritten() == _entries(13, 1)
    log.append(_entries(12, 2, 2))
    assert (log.stable, log.writing) == (11, 11)
    assert log.take_unwritten() == _entries(12, 2, 2)


def test_the_end_of_a_write_proves_nothing_about_what_replaced_it() -> None:
    log = _log()
    log.append(_entries(11, 2, 2))
    log.take_unwritten()
    log.append(_entries(11, 3, 3))
    log.take_unwritten()
    log.stable_to(12, 2)
    assert log.stable == 10
    log.stable_to(12, 3)
    assert log.stable == 12


def test_only_stable_entries_are_applied_unless_told_otherwise() -> None:
    log = _log()
    log.append(_entries(11, 1, 1))
    log.take_unwritten()
    log.commit_to(12)
    log.stable_to(11, 1)
    assert log.take_committed(unstable_too=False) == _entries(11, 1)
    assert log.take_committed(unstable_too=True) == _entries(12, 1)


def test_applying_is_bounded_by_bytes_in_flight() -> None:
    log = _log(1, 1, 1, apply_bytes_max=ENTRY_OVERHEAD_BYTES)
    log.commit_to(13)
    assert log.take_committed(unstable_too=False) == _entries(11, 1)
    assert not log.has_committed(unstable_too=False)
    log.applied_to(11, ENTRY_OVERHEAD_BYTES)
    assert log.take_committed(unstable_too=False) == _entries(12, 1)


def test_nothing_is_applied_while_a_snapshot_is_written() -> None:
    log = _log(1)
    snapshot = SnapshotMeta(20, 3)
    log.install(snapshot)
    assert (log.base_index, log.last_index, log.last_term, log.committed) == (20, 20, 3, 20)
    log.append(_entries(21, 3))
    log.commit_to(21)
    assert not log.has_committed(unstable_too=True)
    assert log.take_snapshot_to_write() == snapshot
    assert log.take_snapshot_to_write() is None
    log.installed(snapshot)
    log.applied_to(20, 0)
    assert log.take_committed(unstable_too=True) == _entries(21, 3)


def test_a_membership_change_is_found_among_commands() -> None:
    change = Entry(index=12, term=1, data=b"", kind=EntryKind.MEMBERS)
    log = Log(SnapshotMeta(10, 1), (Entry(index=11, term=1), change, Entry(index=13, term=1)), apply_bytes_max=NO_BOUND)
    assert log.has_membership_change(11, 12)
    assert not log.has_membership_change(13, 13)
    assert not log.has_membership_change(11, 11)


@pytest.mark.parametrize(
    ("entries", "base", "last"),
    [
        ((), 20, 20),
        (_entries(21, 3, 3), 20, 22),
        (_entries(19, 2, 3, 3), 19, 21),
        (_entries(18, 2, 2), 20, 20),
        (_entries(19, 2, 2, 2), 20, 20),
    ],
    ids=["no log", "follows the snapshot", "reaches before it", "ends before it", "differs from it"],
)
def test_restart_keeps_what_fits_the_snapshot(entries: tuple[Entry, ...], base: int, last: int) -> None:
    log = Log(SnapshotMeta(20, 3), entries, apply_bytes_max=NO_BOUND)
    assert (log.base_index, log.last_index) == (base, last)
    assert log.term_at(20) == 3


def test_restart_with_a_hole_is_refused() -> None:
    with pytest.raises(AssertionError, match="continues"):
        Log(SnapshotMeta(20, 3), _entries(22, 3), apply_bytes_max=NO_BOUND)

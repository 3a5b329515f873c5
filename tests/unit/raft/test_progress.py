"""What a leader knows of a peer, and how fast it may send."""

from ebla.raft.messages import Membership, PeerId
from ebla.raft.options import RaftOptions
from ebla.raft.progress import PeerProgress, ReplicationMode, reconcile_progress


def _progress(messages_max: int = 4, bytes_max: int = 0) -> PeerProgress:
    options = RaftOptions(peer=PeerId(1), inflight_messages_max=messages_max, inflight_bytes_max=bytes_max)
    return PeerProgress(options, next_index=11, is_learner=False, recently_active=True)


def _may_send(progress: PeerProgress) -> bool:
    return not progress.is_paused


def test_a_probe_waits_for_its_answer() -> None:
    progress = _progress()
    progress.sent_entries(1, 10)
    assert not _may_send(progress)
    assert progress.next_index == 11
    assert progress.acknowledged(11)
    assert _may_send(progress)


def test_replication_runs_ahead_until_the_window_is_full() -> None:
    progress = _progress(messages_max=2)
    progress.become_replicate()
    progress.sent_entries(3, 10)
    assert _may_send(progress)
    progress.sent_entries(1, 10)
    assert not _may_send(progress)
    assert progress.next_index == 5
    progress.acknowledged(3)
    progress.inflight.acknowledge(3)
    assert len(progress.inflight) == 1
    assert _may_send(progress)


def test_the_window_is_bounded_by_bytes_too() -> None:
    progress = _progress(messages_max=100, bytes_max=15)
    progress.become_replicate()
    progress.sent_entries(1, 10)
    assert _may_send(progress)
    progress.sent_entries(1, 10)
    assert not _may_send(progress)
    progress.inflight.acknowledge(1)
    assert not progress.inflight.is_full


def test_old_news_changes_nothing() -> None:
    progress = _progress()
    progress.acknowledged(20)
    assert not progress.acknowledged(19)
    progress.become_replicate()
    assert not progress.rejected(20, 5)
    assert progress.next_index == 21


def test_a_refusal_while_replicating_goes_back_to_what_is_certain() -> None:
    progress = _progress()
    progress.acknowledged(20)
    progress.become_replicate()
    progress.sent_entries(5, 10)
    assert progress.rejected(25, 3)
    assert progress.next_index == 21


def test_a_snapshot_pauses_until_it_is_acknowledged() -> None:
    progress = _progress()
    progress.become_snapshot(30)
    assert not _may_send(progress)
    assert progress.mode is ReplicationMode.SNAPSHOT
    progress.become_probe()
    assert progress.next_index == 31
    assert progress.pending_snapshot == 0


def test_members_come_and_go() -> None:
    one, two, three = (PeerId(number) for number in (1, 2, 3))
    options = RaftOptions(peer=one)
    first = reconcile_progress({}, Membership(voters=(one, two)), options, 7)
    first[one].match = 7
    second = reconcile_progress(first, Membership(voters=(one,), learners=(three,)), options, 9)
    assert list(second) == [one, three]
    assert second[one] is first[one]
    assert second[one].match == 7
    assert second[three].next_index == 9
    assert second[three].is_learner
    assert second[three].recently_active

"""Bugs of a Raft peer outside its core: when it answers, what it keeps, what it hands to the state machine."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("raft", "1-40")
DRIVER = "ebla.control.raft.driver"
SNAPSHOTS = "ebla.control.raft.snapshots"
LOG = "ebla.control.raft.storage"
POLICY = "ebla.raft.driver_policy"
READS = "ebla.control.raft.read_index"
RECEIVING = "ebla.control.raft.snapshot_receiver"
SENDING = "ebla.control.raft.snapshot_sender"
POLICY_TESTS = "tests/unit/raft/test_driver_policy.py"
DIRECTED = "tests/unit/control/raft/test_driver.py"
COMMITS = "tests/unit/control/raft/test_commits.py"
RECEIVED = "tests/unit/control/raft/test_snapshot_receiver.py"
SENT = "tests/unit/control/raft/test_snapshot_sender.py"


def _bug(
    name: str, module: str, change: tuple[str, str, str], why: str, check: SimSeeds | PytestCheck = SEEDS
) -> Mutation:
    return Mutation(
        name=f"raft-shell-{name}",
        module=module,
        function=change[0],
        find=change[1],
        replace=change[2],
        check=check,
        why=why,
        limit_s=400,
    )


MUTATIONS = (
    _bug(
        "held-appends-with-a-hole",
        POLICY,
        ("DriverPolicy._hold", "held.entries[-1].index != append.prev_index or held.term", "held.term"),
        "a follower is sent entries with a gap between them",
        PytestCheck(POLICY_TESTS),
    ),
    _bug(
        "hold-never-ends",
        DRIVER,
        ("RaftDriver._send_held", "self._send_batches(self._policy.held_due(self.core.commit_index))", "pass"),
        "a peer lags by one heartbeat, and a commit that needs it waits as long",
        PytestCheck(COMMITS),
    ),
    _bug(
        "held-from-who-waits",
        POLICY,
        ("DriverPolicy.to_send", "if not self._is_waiting(peer, now_ms) and self._hold", "if self._hold"),
        "proposals and reads at a follower wait until the leader is idle",
        PytestCheck(COMMITS),
    ),
    _bug(
        "answer-before-sync",
        DRIVER,
        (
            "RaftDriver._start_writing",
            "assert self._tasks is not None",
            (
                "early = [answer for write in writes for answer in write.answers]\n"
                "self._send([answer for answer in early if not isinstance(answer, WriteCompleted)])"
            ),
        ),
        "an acknowledged entry is lost after a power cut",
    ),
    _bug(
        "sync-skipped",
        "ebla.journal.segmented_log",
        (
            "SegmentedLog._finish_sync",
            "await self._newest.sync()",
            "self._newest.size()",
        ),
        "any acknowledged entry may be lost after a power cut",
    ),
    _bug(
        "vote-not-written",
        "ebla.raft.effects",
        (
            "LogWrite.needs_disk",
            "return self.must_sync or bool(self.entries) or self.snapshot is not None",
            "return bool(self.entries) or self.snapshot is not None",
        ),
        "a restarted peer votes twice in a term",
    ),
    _bug(
        "full-disk-ignored",
        DRIVER,
        ("RaftDriver._persist", "await asyncio.sleep(self._config.disk_full_retry_ms / 1000)", "return None"),
        "a peer with a full disk acknowledges entries that it does not have",
    ),
    _bug(
        "read-without-a-round",
        DRIVER,
        ("RaftDriver.read_index", "future = self._reads.add()", "return self.core.commit_index"),
        "a replaced leader answers reads with old data",
    ),
    _bug(
        "read-context-repeated",
        READS,
        (
            "ReadIndexRounds.start_round",
            "context = self._incarnation + self._count.to_bytes(8)",
            "context = self._count.to_bytes(8)",
        ),
        "an answer to another caller's read, or to an earlier incarnation's, is taken for the answer to this read",
        PytestCheck(f"{DIRECTED}::test_reads_of_two_lives_never_share_a_name"),
    ),
    _bug(
        "snapshot-index-off-by-one",
        SNAPSHOTS,
        (
            "RaftSnapshots.applied",
            "meta = SnapshotMeta(log.applied, term, self._core.membership)",
            "meta = SnapshotMeta(log.applied - 1, term, self._core.membership)",
        ),
        "a peer that receives the snapshot applies the next entry twice",
    ),
    _bug(
        "snapshot-of-older-members",
        SNAPSHOTS,
        (
            "RaftSnapshots.applied",
            "meta = SnapshotMeta(log.applied, term, self._core.membership)",
            "meta = SnapshotMeta(log.applied, term, log.snapshot.membership)",
        ),
        "a peer that receives the snapshot counts other majorities than its peers",
    ),
    _bug(
        "void-change-takes-effect",
        DRIVER,
        (
            "RaftDriver._apply",
            "if self._machine.apply_membership(entry, change):",
            "if self._machine.apply_membership(entry, change) or True:",
        ),
        "a membership change is applied although its lock was revoked",
    ),
    _bug(
        "change-told-late",
        DRIVER,
        (
            "RaftDriver._apply",
            "core.step(ApplyMembership(entry.index, change), now_ms)",
            "self.post(ApplyMembership(entry.index, change))",
        ),
        "entries that the new majority should decide are decided by the old one",
    ),
    _bug(
        "snapshot-not-installed",
        DRIVER,
        ("RaftDriver._complete", "self._snapshots.install(write.snapshot)", "pass"),
        "a peer that received a snapshot continues with a state without it",
    ),
    _bug(
        "snapshot-announced-before-stored",
        RECEIVING,
        (
            "SnapshotReceiver._place",
            "await file.place()\nawait self._actions.on_stored(message, content)",
            "await self._actions.on_stored(message, content)\nawait file.place()",
        ),
        "the log names a snapshot that a crash has removed",
        PytestCheck(f"{RECEIVED}::test_it_is_announced_only_once_it_is_durable"),
    ),
    _bug(
        "snapshot-outcome-kept-quiet",
        SNAPSHOTS,
        ("RaftSnapshots.send", "self._post(SnapshotSent(message.to, delivered))", ""),
        "a peer whose snapshot was lost is never sent anything again",
    ),
    _bug(
        "chunks-of-any-snapshot",
        RECEIVING,
        (
            "SnapshotReceiver._transfer_of",
            "current.rank != rank or current.message != chunk.message",
            "current.message.to != chunk.message.to",
        ),
        "pieces of two snapshots are taken for one",
        PytestCheck(f"{RECEIVED}::test_none_may_be_missing_too_early_or_of_another_snapshot"),
    ),
    _bug(
        "repeated-chunk-counts",
        RECEIVING,
        ("_Transfer.add", "if ahead < 0:\n    return", "if ahead < 0:\n    self._feed(chunk.data)"),
        "a chunk whose answer was lost is in the snapshot twice",
        PytestCheck(f"{RECEIVED}::test_it_is_stored_as_it_was_sent_whatever_overtakes_or_comes_twice"),
    ),
    _bug(
        "superseded-snapshot-goes-on",
        RECEIVING,
        (
            "SnapshotReceiver._append_all",
            "if transfer.failure is not None:\n    raise transfer.failure\nmoved",
            "moved",
        ),
        "a partly received snapshot stays on disk, and the next one waits for ever",
        PytestCheck(f"{RECEIVED}::test_a_later_leaders_or_a_later_try_takes_its_place"),
    ),
    _bug(
        "older-leader-wins",
        RECEIVING,
        (
            "SnapshotReceiver._replace_older",
            "is not None and current.rank < rank:",
            "is not None and current.rank != rank:",
        ),
        "a replaced leader keeps interrupting the snapshot that its successor sends",
        PytestCheck(f"{RECEIVED}::test_a_later_leaders_or_a_later_try_takes_its_place"),
    ),
    _bug(
        "damage-told-to-the-sender",
        RECEIVING,
        ("_Transfer.fail", "if isinstance(failure, Corruption):", "if isinstance(failure, Unavailable):"),
        "a leader takes a peer's invalid answer for corruption of its own disk and stops",
        PytestCheck(f"{RECEIVED}::test_nonsense_is_refused_and_leaves_nothing"),
    ),
    _bug(
        "slow-disk-forgotten",
        SENDING,
        ("SnapshotSender._deliver", "if answer.progress > self._progress:", "if self._progress > answer.progress:"),
        "a peer with a slow disk is sent the same snapshot from the start, for ever",
        PytestCheck(f"{SENT}::test_a_peer_whose_disk_is_slow_is_asked_again_for_as_long_as_it_makes_progress"),
    ),
    _bug(
        "leader-snapshot-does-not-replace",
        LOG,
        ("RaftStorage._records_of", "replaces_log = write.snapshot is not None", "replaces_log = False"),
        "after a restart, uncommitted entries of an old leader follow the new leader's snapshot",
        PytestCheck(f"{DIRECTED}::test_a_leaders_snapshot_replaces_a_longer_log_for_good"),
    ),
)

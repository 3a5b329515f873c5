"""Bugs of the log, the Raft log and the real disk: each loses or invents something after a crash."""

from tests.mutations.framework import Mutation, PytestCheck

SEGMENTS = PytestCheck("tests/unit/journal/test_segments.py")
DAMAGE = PytestCheck("tests/unit/journal/test_damage.py", "tests/unit/journal/test_records.py")
REPLACE = PytestCheck("tests/unit/journal/test_replace.py")
RAFT_LOG = PytestCheck("tests/unit/control/test_raft_log.py")
REAL_DISK = PytestCheck("tests/unit/runtime/test_file_disk.py")

MUTATIONS = (
    Mutation(
        name="journal-answer-before-sync",
        module="ebla.journal.segments",
        find="            self._write(records)\n            await self._finish_sync()\n            return",
        replace="            self._write(records)\n            return",
        check=SEGMENTS,
        why="an acknowledged batch is gone after a power cut",
    ),
    Mutation(
        name="journal-next-frame-before-sync",
        module="ebla.journal.segments",
        find="            await self._finish_sync()\n            if self._rotation_begun",
        replace="            self._unsynced = False\n            if self._rotation_begun",
        check=SEGMENTS,
        why="a batch whose caller gave up is called durable by the next manifest, or torn before a whole one",
    ),
    Mutation(
        name="journal-goes-on-after-failed-sync",
        module="ebla.journal.segments",
        find="        self._failure = failure\n",
        replace="",
        check=SEGMENTS,
        why="a lost page lies under later acknowledged batches",
    ),
    Mutation(
        name="journal-rotation-forgotten",
        module="ebla.journal.segments",
        find="if self._rotation_begun or self._needs_rotation(size):",
        replace="if self._needs_rotation(size):",
        check=SEGMENTS,
        why="a batch goes into a segment that the manifest already calls complete",
    ),
    Mutation(
        name="journal-drop-one-too-many",
        module="ebla.journal.manifest",
        find="if successor <= sequence)",
        replace="if successor <= sequence + 1)",
        check=SEGMENTS,
        why="a segment goes while a record in it is needed",
    ),
    Mutation(
        name="journal-drop-before-manifest",
        module="ebla.journal.segments",
        find=(
            "            await self._save_manifest(kept)\n"
            "            for first_sequence in dropped:\n"
            "                self._place.disk.unlink(segment_path(self._place.folder, first_sequence))\n"
        ),
        replace=(
            "            for first_sequence in dropped:\n"
            "                self._place.disk.unlink(segment_path(self._place.folder, first_sequence))\n"
            "            await self._save_manifest(kept)\n"
        ),
        check=SEGMENTS,
        why="a crash between the two leaves a log that names a missing segment and does not start",
    ),
    Mutation(
        name="journal-rotation-before-segment-is-durable",
        module="ebla.journal.recovery",
        find="        await file.sync()\n        await place.disk.sync_folder(place.folder)\n",
        replace="",
        check=SEGMENTS,
        why="the manifest names a segment that a power cut takes away",
    ),
    Mutation(
        name="journal-recovered-tail-not-synced",
        module="ebla.journal.recovery",
        find="        reserve(file, place.limits.segment_bytes)\n        await file.sync()\n    except",
        replace="        reserve(file, place.limits.segment_bytes)\n    except",
        check=SEGMENTS,
        why="a batch that was read and acted on after a restart is gone after a power cut",
    ),
    Mutation(
        name="journal-last-frame-not-written-again",
        module="ebla.journal.recovery",
        find="        _write_again(file, tail)\n",
        replace="",
        check=PytestCheck("tests/unit/journal/test_failed_sync.py"),
        why="a batch that only the page cache has after a failed sync vanishes under later ones",
    ),
    Mutation(
        name="journal-found-names-not-synced",
        module="ebla.journal.recovery",
        find="    await disk.sync_folder(parent_folder(folder))\n    await disk.sync_folder(folder)\n",
        replace="    await disk.sync_folder(parent_folder(folder))\n",
        check=SEGMENTS,
        why="the old manifest comes back and a segment with acknowledged batches counts as never used",
    ),
    Mutation(
        name="journal-torn-tail-not-cut",
        module="ebla.journal.recovery",
        find="        if tail.torn:\n            file.truncate(tail.spot.offset)\n",
        replace="",
        check=DAMAGE,
        why="what is left of a torn batch stands behind a shorter one and looks like damage",
    ),
    Mutation(
        name="journal-damage-taken-for-torn",
        module="ebla.journal.scan",
        find="    later = _find_later_frame(log_id, spot, rest)\n",
        replace="    later = None\n",
        check=DAMAGE,
        why="a lost sector in the middle silently cuts off everything behind it",
    ),
    Mutation(
        name="journal-whole-frame-taken-for-torn",
        module="ebla.journal.scan",
        find="    if whole is not None:\n",
        replace="    if False:\n",
        check=DAMAGE,
        why="one flipped bit in the last acknowledged batch silently removes it",
    ),
    Mutation(
        name="journal-zeros-unmasked",
        module="ebla.journal.records",
        find="    mask = _choose_mask(payload)\n",
        replace="    mask = 0\n",
        check=DAMAGE,
        why="damage to a batch that holds zeros is taken for a torn write",
    ),
    Mutation(
        name="journal-frame-valid-anywhere",
        module="ebla.journal.records",
        find="    return zlib.crc32(_SEED.pack(log_id, offset))\n",
        replace="    return 0\n",
        check=DAMAGE,
        why="bytes inside somebody's record are taken for the log's own",
    ),
    Mutation(
        name="journal-shorter-than-acknowledged",
        module="ebla.journal.recovery",
        find="if tail.spot.sequence <= manifest.acknowledged:",
        replace="if False:",
        check=SEGMENTS,
        why="a file that somebody cut short starts as if nothing had been there",
    ),
    Mutation(
        name="journal-missing-manifest-is-a-new-log",
        module="ebla.journal.recovery",
        find="if first_sequence != FIRST_SEQUENCE or await _has_frames(place, path):",
        replace="if False:",
        check=SEGMENTS,
        why="a lost manifest wipes the log",
    ),
    Mutation(
        name="replace-without-sync",
        module="ebla.journal.replace",
        find="            await file.sync()\n",
        replace="",
        check=REPLACE,
        why="after a power cut the name is there and the content is not",
    ),
    Mutation(
        name="replace-without-folder-sync",
        module="ebla.journal.replace",
        find="    await disk.sync_folder(parent_folder(path))\n",
        replace="",
        check=REPLACE,
        why="the old content comes back after the new one was promised",
    ),
    Mutation(
        name="raft-log-commit-hint-forgets-vote",
        module="ebla.control.raft_log",
        find="                hard_state = write.hard_state or hard_state\n",
        replace="                hard_state = write.hard_state or HardState()\n",
        check=RAFT_LOG,
        why="term and vote go back, and a peer votes twice",
    ),
    Mutation(
        name="raft-log-mark-out-of-turn",
        module="ebla.control.raft_log",
        find="        async with self._turn:\n            if meta.index > self",
        replace="        if True:\n            if meta.index > self",
        check=RAFT_LOG,
        why="a snapshot's mark repeats an older hard state and takes a vote back",
    ),
    Mutation(
        name="raft-log-suffix-lost-at-mark",
        module="ebla.control.raft_log",
        find="self._entries = [] if replaces_log else self._entries[max(covered, 0) :]",
        replace="self._entries = []",
        check=RAFT_LOG,
        why="entries behind a snapshot are forgotten at restart although they were acknowledged",
    ),
    Mutation(
        name="raft-log-drops-needed-entries",
        module="ebla.control.raft_log",
        find="self._places.oldest_needed(self._snapshot.index + 1, mark_sequence)",
        replace="mark_sequence",
        check=RAFT_LOG,
        why="entries behind a snapshot are on disk no longer",
    ),
    Mutation(
        name="raft-log-replacement-keeps-suffix",
        module="ebla.control.raft_log",
        find="        del self._entries[max(keep, 0) :]\n        self._entries.extend(entries)\n",
        replace="        self._entries[max(keep, 0) : max(keep, 0) + len(entries)] = entries\n",
        check=RAFT_LOG,
        why="an old leader's entries come back behind those that replaced them",
    ),
    Mutation(
        name="disk-failed-sync-forgiven",
        module="ebla.runtime.file_disk",
        find="        self._sync_failure = self._sync_failure or failure\n",
        replace="        del failure\n",
        check=REAL_DISK,
        why="the second sync succeeds although the first lost the bytes",
    ),
    Mutation(
        name="disk-short-write-accepted",
        module="ebla.runtime.file_disk",
        find="    while written < len(data):\n",
        replace="    while False:\n",
        check=REAL_DISK,
        why="half a batch is acknowledged",
    ),
    Mutation(
        name="disk-closed-under-a-sync",
        module="ebla.runtime.file_disk",
        find="        if not in_use:\n            os.close",
        replace="        if True:\n            os.close",
        check=REAL_DISK,
        why="a thread syncs or writes another file that got the same number",
    ),
)

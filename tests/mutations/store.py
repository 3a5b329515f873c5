"""Bugs of the tablet store: each loses an answered write, or brings a deleted cell back."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

MODEL = PytestCheck("tests/properties/test_stack_model.py::test_the_same_scripts_every_time")
STORE = PytestCheck("tests/unit/storage/test_store.py")
ROWS = PytestCheck("tests/properties/test_rows.py")
SIM = SimSeeds("store", "1-60")

MUTATIONS = (
    Mutation(
        name="store-gc-without-b",
        module="ebla.storage.compaction.compaction_plan",
        find="    return min(outside, default=ALWAYS_US)\n",
        replace="    return ALWAYS_US\n",
        check=MODEL,
        why="a fold drops a tombstone above an older cell in a layer it did not read, and the cell is back",
    ),
    Mutation(
        name="store-gc-without-b-in-simulation",
        module="ebla.storage.compaction.compaction_plan",
        find="    return min(outside, default=ALWAYS_US)\n",
        replace="    return min(outside[:0], default=ALWAYS_US)\n",
        check=SIM,
        why="the same, seen by the simulated shard",
    ),
    Mutation(
        name="store-gc-forgets-live",
        module="ebla.storage.compaction.compaction_plan",
        find="        if layer.id not in inputs and any(",
        replace="        if layer.id not in inputs and not layer.is_live and any(",
        check=MODEL,
        why="an old cell written a moment ago comes out from under its tombstone",
    ),
    Mutation(
        name="store-gc-without-c",
        module="ebla.storage.stack_changes",
        find="            held = bool(stack.gc_holds) or stack.compaction_keeps_all\n",
        replace="            held = False\n            stack.gc_holds.clear()\n",
        check=MODEL,
        why="a layer on its way brings back what was deleted here",
    ),
    Mutation(
        name="store-gc-without-recheck",
        module="ebla.storage.compaction.compaction_plan",
        find="    if result.dropped_greatest_us == NEVER_US:\n        return SwapOutcome.SWAPPED\n",
        replace="    if result.dropped_greatest_us >= NEVER_US:\n        return SwapOutcome.SWAPPED\n",
        check=MODEL,
        why="what arrived while the fold ran loses its tombstone",
    ),
    Mutation(
        name="store-gc-without-recheck-in-simulation",
        module="ebla.storage.compaction.compaction_plan",
        find="    if result.dropped_greatest_us >= least_outside_us(layers, inputs):\n",
        replace="    if result.dropped_greatest_us >= least_outside_us(layers, inputs) + (1 << 62):\n",
        check=SIM,
        why="the same, seen by the simulated shard",
    ),
    Mutation(
        name="store-swap-lets-old-writes-in",
        module="ebla.storage.stack_changes",
        find="                stack.reject_upto_us = result.dropped_greatest_us\n",
        replace="                pass\n",
        check=STORE,
        why="a write is covered when it is answered and visible a moment later",
    ),
    Mutation(
        name="store-gc-mode-ignored",
        module="ebla.storage.compaction.tombstone_gc",
        find="spans = (GcSpan(token_range, terms.now_s - options.gc_grace_s),)",
        replace="spans = (GcSpan(token_range, terms.now_s),)",
        check=PytestCheck("tests/unit/storage/compaction/test_tombstone_gc.py"),
        why="a replica that was down brings back what was deleted meanwhile",
    ),
    Mutation(
        name="store-gc-of-ranges-never-repaired",
        module="ebla.storage.compaction.tombstone_gc",
        find="        found = [span.before_s for span in self.spans if token in span.range]\n",
        replace="        found = [span.before_s for span in self.spans]\n",
        check=PytestCheck("tests/unit/storage/compaction/test_tombstone_gc.py"),
        why="a range that was never repaired loses its tombstones",
    ),
    Mutation(
        name="store-manifest-before-folders",
        module="ebla.storage.stack_changes",
        find="        await layer.flush()\n        sealed =",
        replace="        sealed =",
        check=SIM,
        why="the manifest names a base whose rows are not on disk, and the log is told that they are",
    ),
    Mutation(
        name="store-adopted-folder-not-synced",
        module="ebla.storage.layers.memory_engine",
        find="            if durable:\n                await disk.sync_folder(folder)\n",
        replace="            if False:\n                await disk.sync_folder(folder)\n",
        check=SIM,
        why="the manifest names a folder that a power cut takes",
    ),
    Mutation(
        name="store-manifest-read-unsynced",
        module="ebla.storage.manifest",
        find="    await disk.sync_folder(folder)\n    return await read_manifest(disk, folder)\n",
        replace="    return await read_manifest(disk, folder)\n",
        check=PytestCheck("tests/unit/storage/test_manifest.py"),
        why="layers are swept by a manifest that the next power cut takes back",
    ),
    Mutation(
        name="store-replay-without-incarnation",
        module="ebla.storage.store_recovery",
        find=(
            "            stack = self._store.stacks.get(record.incarnation)\n"
            "            # Rows of another incarnation of the tablet, which left and came back since, "
            "are not this one's.\n"
            "            if stack is None or sequence < stack.replay_from or stack.damage:\n"
        ),
        replace=(
            "            known = self._store.stacks\n"
            "            stack = known.get(record.incarnation) or next(iter(known.values()), None)\n"
            "            record = type(record)(stack.incarnation if stack else record.incarnation, record.items)\n"
            "            if stack is None or stack.damage:\n"
        ),
        check=STORE,
        why="a replica that left and came back has rows that were moved away and deleted since",
    ),
    Mutation(
        name="store-replay-of-sealed-records",
        module="ebla.storage.store_recovery",
        find="if stack is None or sequence < stack.replay_from or stack.damage:",
        replace="if stack is None or stack.damage:",
        check=STORE,
        why="a cell comes back from the log after the tombstone above it was dropped",
    ),
    Mutation(
        name="store-replay-trusts-lost-sequences",
        module="ebla.storage.store_recovery",
        find="    manifest = await _clamp(disk, folder, manifest, log.next_sequence)\n",
        replace="",
        check=STORE,
        why="records that get the sequences of lost ones are taken for those, and not replayed",
    ),
    Mutation(
        name="store-tie-the-other-way",
        module="ebla.model.rows",
        find='    return (cell.timestamp_us, cell.value is None, cell.value or b"", cell.at_s, cell.ttl_s)\n',
        replace='    return (cell.timestamp_us, cell.value is not None, cell.value or b"", cell.at_s, cell.ttl_s)\n',
        check=MODEL,
        why="replicas that saw the same cells show different rows",
    ),
    Mutation(
        name="store-range-tombstone-ignored-in-one-layer",
        module="ebla.storage.stack",
        find="            layer.facts.has_heads if slot.has_heads is None else slot.has_heads\n",
        replace="            layer.facts.has_heads if slot.has_heads is None else False\n",
        check=STORE,
        why="rows of a deleted slice show as long as the deletion is in a base",
    ),
    Mutation(
        name="store-head-of-a-slice-forgotten",
        module="ebla.storage.stack",
        find="        return without_deleted_rows(merged, self._stack.schema, self._head_before(start))\n",
        replace="        return without_deleted_rows(merged, self._stack.schema)\n",
        check=STORE,
        why="a page that begins inside a partition shows deleted rows",
    ),
    Mutation(
        name="store-end-check-dropped",
        module="ebla.storage.layers.rocks_engine",
        find="            self._check_end()\n            self._finish()\n",
        replace="            self._finish()\n",
        check=PytestCheck("tests/unit/storage/test_rocks_traps.py"),
        why="a damaged block ends a scan, and half a tablet is streamed as the whole",
    ),
    Mutation(
        name="store-log-dropped-too-early",
        module="ebla.storage.stack",
        find="        self._held_from, self._dirty_from = self.needed_from, None\n",
        replace="        self._held_from, self._dirty_from = None, None\n",
        check=SIM,
        why="the log's segment goes while the flush that makes it superfluous is still running",
    ),
    Mutation(
        name="store-answer-before-durable",
        module="ebla.storage.commit_log",
        find="        if sequence < self._durable_before:\n            return\n",
        replace="        if sequence < self._next_sequence:\n            return\n",
        check=STORE,
        why="an answered write is gone after a power cut",
    ),
    Mutation(
        name="store-clip-forgotten",
        module="ebla.storage.stack",
        find="            if slot.clip is not None and not in_spans(key, slot.clip):\n                continue\n",
        replace="",
        check=STORE,
        why="rows outside a layer's range, which belong to another tablet now, are read",
    ),
    Mutation(
        name="store-full-disk-loses-queue",
        module="ebla.storage.commit_log",
        find="            self._full = failure\n",
        replace="            self._full = failure\n            self._queued.clear()\n",
        check=STORE,
        why="a write that was said to be kept and tried again is not",
    ),
    Mutation(
        name="store-full-for-ever",
        module="ebla.storage.commit_log",
        find="        self._full = None\n        for record",
        replace="        for record",
        check=STORE,
        why="a shard that found its disk full once never takes a write again",
    ),
)

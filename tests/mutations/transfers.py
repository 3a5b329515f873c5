"""Bugs of transfers: sessions, staging, the seal, adoption, jobs.

The check is a directed test where one shows the bug, and simulator seeds where it takes whole nodes or to show that
the scenario alone would catch it.
"""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("transfers", "1-12")
SEEDS_S = 500
DESK = PytestCheck("tests/unit/bulk/test_transfer_service.py")
STAGING = PytestCheck("tests/unit/bulk/test_staging.py")
TOGETHER = PytestCheck("tests/unit/bulk/test_multi_file_put.py")
ADOPTION = PytestCheck("tests/unit/replica/test_adoption.py")
RUNS = PytestCheck("tests/unit/bulk/test_seal_of_runs.py")
JOB_ADOPTION = PytestCheck("tests/unit/replica/test_job_adoption.py")
SESSIONS = PytestCheck("tests/unit/control/topology/test_bulk_sessions.py")
QUEUE = PytestCheck("tests/unit/pipeline/test_job_queue.py")
RUNNER = PytestCheck("tests/unit/pipeline/test_job_runner.py")

MUTATIONS = (
    # -- sessions at the bulk process
    Mutation(
        name="transfers-session-not-checked-at-the-seal",
        module="ebla.bulk.transfer_service",
        function="TransferService.seal",
        find=(
            "async with self._guarded(request.session, call):\n"
            "    staged = self.staging.find(request.session, request.transfer)"
        ),
        replace="if True:\n    staged = self.staging.find(request.session, request.transfer)",
        check=DESK,
        why="a cancelled job that another one has replaced still decides which runs are sealed",
    ),
    Mutation(
        name="transfers-session-not-checked-at-a-batch",
        module="ebla.bulk.transfer_streams",
        function="TransferStreams.append",
        find=(
            "with self._context.guards.hold_guard_without_barrier(stream.session):\n"
            "    await self._open_puts.append(stream, data)"
        ),
        replace="await self._open_puts.append(stream, data)",
        check=DESK,
        why="an abandoned task keeps filling the disk of a node",
    ),
    Mutation(
        name="transfers-put-opened-without-a-read-barrier",
        module="ebla.bulk.transfer_streams",
        function="TransferStreams._open_put",
        find="async with guards.hold_guard(session, self._context.limits.barrier_ms):",
        replace="with guards.hold_guard_without_barrier(session):",
        check=DESK,
        why="a lagging bulk process accepts files of a closed session",
    ),
    # -- adoption
    Mutation(
        name="transfers-adoption-without-incarnation",
        module="ebla.replica.adoption",
        function="ShardAdoptions._staged",
        find="if target.incarnation != stack.incarnation:",
        replace="if target.incarnation != stack.incarnation and not stack.incarnation:",
        check=ADOPTION,
        why="a replica that left and came back gets rows whose tombstones are purged everywhere else",
    ),
    Mutation(
        name="transfers-adoption-without-guard",
        module="ebla.replica.adoption",
        function="ShardAdoptions._begin",
        find=(
            "async with context.guards.hold_guard(request.session, deadline_ms):\n"
            "    # Nothing awaits between the guard and the hold: the open session holds collection in between."
        ),
        replace=(
            "async with context.guards.hold_guard(request.session, deadline_ms):\n"
            "    pass\n"
            "await asyncio.sleep(0.3)\n"
            "if True:"
        ),
        check=ADOPTION,
        why="a layer of a session becomes part of a replica after the session was closed everywhere",
    ),
    Mutation(
        name="transfers-adoption-layer-by-layer",
        module="ebla.storage.stack_changes",
        function="StackChanges.adopt_all",
        find="await self._adopt_fresh(stack, fresh, tuple(origins), check)",
        replace=("for own in fresh:\n    await self._adopt_fresh(stack, [own], tuple(origins), check)"),
        check=PytestCheck("tests/unit/storage/test_adoption.py"),
        why="a deleted row whose tombstone is in the next layer is visible for a moment, or after a crash for ever",
    ),
    Mutation(
        name="transfers-adopted-again-when-asked-again",
        module="ebla.storage.stack_changes",
        function="StackChanges.adopt_all",
        find="fresh = [one for one in adoptions if one.origin not in stack.entry.adopted]",
        replace="fresh = list(adoptions)",
        check=ADOPTION,
        why="a lost answer doubles the size of a replica",
    ),
    Mutation(
        name="transfers-adoption-not-fenced-on-arrival",
        module="ebla.replica.adoption",
        function="ShardAdoptions.adopt",
        find="self._check_fence(version)",
        replace="pass",
        check=JOB_ADOPTION,
        why="a request with a fenced version waits for guards and reads files before it is refused",
    ),
    Mutation(
        name="transfers-adoption-not-fenced-before-the-effect",
        module="ebla.replica.adoption",
        function="ShardAdoptions._check_before",
        find="self._check_fence(version)",
        replace="pass",
        check=JOB_ADOPTION,
        why="a job's layer is adopted with a version that a barrier has already excluded",
    ),
    Mutation(
        name="transfers-fence-does-not-wait-for-manifests",
        module="ebla.replica.adoption",
        function="ShardAdoptions.before_fence",
        find="while any(version < fence for version in self._effects):",
        replace="while any(version < fence - fence for version in self._effects):",
        check=JOB_ADOPTION,
        why="a layer in flight becomes part of a replica after its node was fenced",
    ),
    Mutation(
        name="transfers-adoption-not-fenced-after-the-effect",
        module="ebla.replica.adoption",
        function="ShardAdoptions.adopt",
        find="raise overtaken(version, fence)",
        replace="pass",
        check=JOB_ADOPTION,
        why="a job counts a replica that had lost its range when it answered",
    ),
    Mutation(
        name="transfers-adoption-holds-no-version",
        module="ebla.replica.adoption",
        function="ShardAdoptions.adopt",
        find="context.view.hold(version)",
        replace=("context.view.hold(context.view.current.version)\nversion = context.view.current.version"),
        check=JOB_ADOPTION,
        why="a barrier returns while a layer of an older version is still being adopted",
    ),
    Mutation(
        name="transfers-adoption-of-any-number-of-layers",
        module="ebla.replica.adoption",
        function="ShardAdoptions._check_layers",
        find="if bases + layers > max(layers_max, layers):",
        replace="if bases + layers > max(layers_max, layers) + bases:",
        check=JOB_ADOPTION,
        why="many small jobs make every read look into hundreds of layers",
    ),
    # -- the seal
    Mutation(
        name="transfers-linked-file-not-isolated",
        module="ebla.bulk.seal",
        function="Sealer._isolate",
        find="is_copied = not self._context.isolation.has_no_writer(taken)",
        replace="is_copied = False",
        check=STAGING,
        why="an abandoned task that still has its file open changes a replica's file",
    ),
    Mutation(
        name="transfers-staging-shared-by-attempts",
        module="ebla.bulk.staging",
        function="StagedTransfer.attempt_folder",
        find='return f"{self.folder}/{attempt}"',
        replace='return f"{self.folder}/{uuid.UUID(int=attempt.int * 0)}"',
        check=STAGING,
        why="two attempts at once write into one file",
    ),
    Mutation(
        name="transfers-seal-does-not-look-at-checksums",
        module="ebla.bulk.seal",
        function="Sealer._has_checksum",
        find="return file_checksum(self._disk, path) == expected.checksum",
        replace="return self.exists(path)",
        check=STAGING,
        why="a bit that changed in transit becomes part of a replica",
    ),
    Mutation(
        name="transfers-merge-does-not-look-at-checksums",
        module="ebla.storage.merge.run_merge",
        function="_Run.__init__",
        find="self._expected = rules.checksums.get(file.path)",
        replace="self._expected = None",
        check=RUNS,
        why="a run that a task has rewritten since it was named becomes part of a replica",
    ),
    Mutation(
        name="transfers-files-together-not-compared",
        module="ebla.transfers.flight_client",
        function="FlightClient._move_together",
        find="if answer.checksum != checksum:",
        replace="if answer.received_bytes < 0:",
        check=TOGETHER,
        why="small files that changed in transit are reported as identical to the source",
    ),
    Mutation(
        name="transfers-files-together-end-anywhere",
        module="ebla.bulk.multi_file_put",
        function="MultiFilePut.take",
        find="if self._stream is not None or self._pending:",
        replace="if False:",
        check=TOGETHER,
        why="a broken stream looks like one that has delivered all of its files",
    ),
    Mutation(
        name="transfers-sealed-names-not-durable",
        module="ebla.bulk.seal",
        function="Sealer._files",
        find="await gather_bounded([partial(self._disk.sync_folder, one) for one in below], CONCURRENT_SYNCS_MAX)",
        replace="",
        check=STAGING,
        why="after a power cut a marker names files that are not there",
    ),
    Mutation(
        name="transfers-seal-takes-any-size",
        module="ebla.bulk.seal",
        function="Sealer._move",
        find="if size_bytes != expected.size_bytes:",
        replace="if size_bytes < 0:",
        check=STAGING,
        why="half of a file is taken for the complete file",
    ),
    Mutation(
        name="transfers-seal-takes-another-attempt",
        module="ebla.bulk.staging_state",
        function="StagingState.sealing",
        find="is_named = not self.winners or self.winners == winners",
        replace="is_named = not self.winners or bool(winners)",
        check=STAGING,
        why="a shard reads the files of one attempt while another replaces them",
    ),
    # -- several runs
    Mutation(
        name="transfers-second-run-forgotten",
        module="ebla.bulk.seal",
        function="SealSpec.runs",
        find="return (*((self.attempt, file) for file in self.files), *self.more)",
        replace="return (*((self.attempt, file) for file in self.files), *self.more[1:])",
        check=RUNS,
        why="the rows of one task are missing, and the job reports success",
    ),
    Mutation(
        name="transfers-second-run-forgotten-in-simulation",
        module="ebla.bulk.seal",
        function="SealSpec.runs",
        find="return (*((self.attempt, file) for file in self.files), *self.more)",
        replace="return (*((self.attempt, file) for file in self.files), *self.more[1:])",
        check=SEEDS,
        why="the rows of one task are missing, and the scenario would not notice",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="transfers-set-of-runs-not-remembered",
        module="ebla.bulk.seal",
        function="Sealer._rows",
        find="sealed = SealedFile(attempt=spec.attempt, more=sorted_attempts(attempt for attempt, _ in spec.more))",
        replace="sealed = SealedFile(attempt=spec.attempt)",
        check=RUNS,
        why="after a restart another set of runs is taken for the sealed one, or the sealed one is refused",
    ),
    Mutation(
        name="transfers-only-the-first-attempt-is-compared",
        module="ebla.bulk.staging_state",
        function="StagingState.sealing",
        find="is_named = not self.winners or self.winners == winners",
        replace="is_named = not self.winners or self.winners[0] == winners[0]",
        check=RUNS,
        why="a commit that lacks a run is reported as done",
    ),
    Mutation(
        name="transfers-runs-not-checked-for-order",
        module="ebla.storage.merge.run_merge",
        function="RowOrderCheck.check",
        find="if not is_next or not _ascend(keys, words):",
        replace="if not is_next and not _ascend(keys, words):",
        check=RUNS,
        why="a layer is built out of order, and reads do not find its rows",
    ),
    Mutation(
        name="transfers-keys-of-several-runs-kept-several-times",
        module="ebla.storage.merge.chunk_merge",
        function="sort_rows",
        find="if same_key.any():",
        replace="if same_key.all() and len(same_key) > len(order):",
        check=RUNS,
        why="a layer has a key twice, and it is random which row is read",
    ),
    Mutation(
        name="transfers-window-beyond-what-is-read",
        module="ebla.storage.merge.run_merge",
        function="_window_end",
        find="end = min(bounds) if bounds else max(run.last_key for run in runs)",
        replace="end = max(run.last_key for run in runs)",
        check=PytestCheck("tests/unit/storage/merge/test_run_merge.py"),
        why="rows of one run are written after larger ones of another",
    ),
    Mutation(
        name="transfers-sealed-runs-told-as-one",
        module="ebla.bulk.staged_rows",
        function="_sealed_rows",
        find='return StagedRows(f"{staged.folder}/{sealed.rows_file}", is_merged=True)',
        replace='return StagedRows(f"{staged.folder}/{sealed.rows_file}")',
        check=RUNS,
        why="a copy for one more replica contains all rows once for each run",
    ),
    # -- the end of sessions
    Mutation(
        name="transfers-guards-not-drained-at-close",
        module="ebla.control.topology.bulk_sessions",
        function="BulkSessionService.close",
        find="request = NodeBarrierRequest(now.version, drain=True)",
        replace="request, members = NodeBarrierRequest(now.version, drain=True), members[:0]",
        check=SESSIONS,
        why="a job is reported finished while a replica still adopts a layer of it",
    ),
    Mutation(
        name="transfers-guards-of-bulk-not-told",
        module="ebla.node.child_process",
        function="ChildProcess.report_of",
        find="closing_sessions=() if self.guards is None else self.guards.closing",
        replace="closing_sessions=()",
        check=PytestCheck("tests/unit/bulk/test_bulk_process.py"),
        why="a close returns while a seal of the session is running",
    ),
    Mutation(
        name="transfers-sweep-of-an-open-session",
        module="ebla.bulk.sweeper",
        function="Sweeper.sweep",
        find="await self._guards.catch_up(barrier_ms)",
        replace="",
        check=DESK,
        why="a starting bulk process that does not know a session yet removes files that are being staged",
    ),
    Mutation(
        name="transfers-nothing-is-swept",
        module="ebla.bulk.sweeper",
        function="Sweeper.sweep",
        find="await self._sweep_one(session)",
        replace="del session",
        check=DESK,
        why="files staged by a crashed job stay on disk for ever",
    ),
    Mutation(
        name="transfers-late-folders-not-swept",
        module="ebla.bulk.sweeper",
        function="Sweeper.sweep",
        find="self._staging.notice_orphans()",
        replace="",
        check=DESK,
        why="a task that continues after its session was removed leaves its files for ever",
    ),
    Mutation(
        name="transfers-nothing-is-swept-in-simulation",
        module="ebla.bulk.sweeper",
        function="Sweeper.sweep",
        find="for session in self._unlisted():",
        replace="for session in self._unlisted()[:0]:",
        check=SEEDS,
        why="the same, found by whole nodes",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="transfers-linked-file-not-isolated-in-simulation",
        module="ebla.sim.disk",
        function="ProcessDisk.has_no_writer",
        find="return not self._file(path).is_open()",
        replace="return self.exists(path)",
        check=SEEDS,
        why="the same as without isolation, found by whole nodes",
        limit_s=SEEDS_S,
    ),
    # -- tombstones
    Mutation(
        name="transfers-gc-not-held-while-staging-is-open",
        module="ebla.replica.replica_stacks",
        function="_holds_of",
        find="if table_id in staged:",
        replace="if table_id in staged and not staged:",
        check=PytestCheck("tests/unit/replica/test_replica_stacks.py", "tests/unit/replica/test_adoption.py"),
        why="a tombstone is purged while an older row is in transit, and the deleted row is back",
    ),
    Mutation(
        name="transfers-target-found-after-the-checkpoint",
        module="ebla.transfers.transfer_run",
        function="TransferRun.copy_files",
        find=(
            "opened = await self._open_file_targets(table, copies)\n"
            'self.meter.step("taking a checkpoint")\n'
            "one_shard = copies[0].source if len(copies) == 1 else None\n"
            "covered = covering_range([copy.range for copy in copies])\n"
            "source = await self.client.take_checkpoint(self.scope(table), copies[0].source.host, covered, one_shard)"
        ),
        replace=(
            "one_shard = copies[0].source if len(copies) == 1 else None\n"
            "covered = covering_range([copy.range for copy in copies])\n"
            "source = await self.client.take_checkpoint(self.scope(table), copies[0].source.host, covered, one_shard)\n"
            "opened = await self._open_file_targets(table, copies)"
        ),
        check=RUNNER,
        why="a tombstone that the target purges meanwhile does not cover a row of the checkpoint",
    ),
    # -- jobs
    Mutation(
        name="transfers-job-run-again-without-closing-the-old-session",
        module="ebla.pipeline.job_queue",
        function="JobQueue._take_over",
        find=("if record.session is not None:\n    await self._runner.close(record.session)"),
        replace="",
        check=QUEUE,
        why="two runs of one job stage files at the same time, and the first may continue after the second has ended",
    ),
    Mutation(
        name="transfers-cancelled-before-its-session-is-closed",
        module="ebla.pipeline.job_queue",
        function="JobQueue._run_to_end",
        find="await self._runner.close(new.session)",
        replace="pass",
        check=QUEUE,
        why="a task of a cancelled job continues, and its rows count",
    ),
)

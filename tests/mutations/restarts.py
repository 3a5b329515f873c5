"""Bugs of a node's start: stores and copies of folders that must not be served."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("restarts", "1-8")
SEEDS_S = 300

MUTATIONS = (
    Mutation(
        name="restarts-served-before-confirmed",
        module="ebla.node.control_process",
        function="ControlProcess._follow_topology",
        find="await group0.confirmed.wait()",
        replace="while not group0.is_running:\n    await asyncio.sleep(0.01)",
        check=SEEDS,
        why="a node on an older copy of its folder serves rows until group 0 has answered",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-empty-store-accepted",
        module="ebla.control.local_stores",
        function="LocalStores._prepare_one",
        find="if number < len(marks) and marks[number].is_created:",
        replace="if False:",
        check=SEEDS,
        why="a node whose disk was lost serves an empty store",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-log-id-not-compared",
        module="ebla.storage.store_identity",
        function="check_store",
        find="if log.log_id != manifest.log_id:",
        replace="if False:",
        check=SEEDS,
        why="a store is opened with a commit log that is not its own",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-mark-written-after-group0",
        module="ebla.control.group0.node",
        function="Group0Node._confirmed_by",
        find="""if self._start not in mark.offered:
            await self.join_state.save(offered=(*mark.offered, self._start))
        await running.client.confirm_start(transaction, CONFIRM_MS)""",
        replace="""await running.client.confirm_start(transaction, CONFIRM_MS)
if self._start not in mark.offered:
    await self.join_state.save(offered=(*mark.offered, self._start))""",
        check=SEEDS,
        why="a node that is killed while its start is confirmed takes itself for an older copy, and never starts again",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-answer-believed-without-reading",
        module="ebla.control.group0.node",
        function="Group0Node._confirmed_by",
        find="await running.client.confirm_start(transaction, CONFIRM_MS)\n        return None",
        replace="await running.client.confirm_start(transaction, CONFIRM_MS)\nreturn own",
        check=PytestCheck("tests/sim/test_restarts.py::test_a_start_that_another_process_overtakes_is_never_confirmed"),
        why="of two processes on copies of one folder, both serve for a while",
    ),
    Mutation(
        name="restarts-commands-before-confirmed",
        module="ebla.control.group0.client",
        function="Group0Client._require_confirmed",
        find="if not self.is_confirmed:",
        replace="if False:",
        check=SEEDS,
        why="a process on a copy of the folder gets the answers to the original's commands as its own",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-missing-layer-ignored",
        module="ebla.storage.store_recovery",
        function="open_store",
        find="manifest = await _quarantine_missing(disk, folder, manifest)",
        replace="pass",
        check=SEEDS,
        why="a replica whose layer was lost serves without its rows",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-older-parts-accepted",
        module="ebla.storage.store_identity",
        function="check_store",
        find="if found < stamped and",
        replace="if False and",
        check=SEEDS,
        why="a commit log that was restored from a copy lacks rows that were acknowledged since",
        limit_s=SEEDS_S,
    ),
    Mutation(
        name="restarts-id-not-in-the-mark-before-the-store",
        module="ebla.control.local_stores",
        function="LocalStores._prepare_one",
        find="store = marks[number].store if number < len(marks) else StoreId(self._rng.uuid())\n"
        "        await self._save(number, StoreMark(store=store, is_created=False))",
        replace="store = marks[number].store if number < len(marks) else StoreId(self._rng.uuid())",
        check=PytestCheck("tests/unit/control/test_local_stores.py"),
        why="a store is created whose id nothing remembers after a crash, and the node never starts again",
    ),
    Mutation(
        name="restarts-store-created-without-control",
        module="ebla.storage.store_recovery",
        function="open_store",
        find="await check_store(disk, folder, store_id)",
        replace="from ebla.storage.store_identity import create_store\nawait create_store(disk, rng, folder, store_id)",
        check=PytestCheck("tests/unit/storage/test_store_identity.py"),
        why="a shard that finds an empty folder creates a store in it, and serves without any row",
    ),
    Mutation(
        name="restarts-format-raised-before-the-last-adoption",
        module="ebla.control.local_stores",
        function="LocalStores.prepare",
        find="number = 0",
        replace="number = 0\nif adopts:\n    await self._raise_format()",
        check=PytestCheck("tests/unit/control/test_local_stores.py"),
        why="after a crash in the first start of this release the rest of its stores is never adopted",
    ),
)

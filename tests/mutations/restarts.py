"""Bugs of a node's start: stores and copies of folders that must not be served."""

from tests.mutations.framework import Mutation, SimSeeds

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
)

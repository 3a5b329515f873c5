"""Bugs of ranges that a node gains (INV-NODE-20): each brings a deleted row back, or hides an acknowledged write."""

from tests.mutations.framework import Mutation, PytestCheck

MODEL = PytestCheck("tests/properties/test_gained_ranges.py::test_the_same_histories_every_time")
STACKS = PytestCheck("tests/unit/replica/test_gained_ranges.py")
STORE = PytestCheck("tests/unit/storage/test_gained_ranges.py")

MUTATIONS = (
    Mutation(
        name="gain-range-not-hidden",
        module="ebla.storage.stack_changes",
        function="_with_hidden",
        find="merge_ranges((*one.hidden, *gained))",
        replace="one.hidden",
        check=MODEL,
        why="a node that gains a range again serves rows that were deleted meanwhile",
    ),
    Mutation(
        name="gain-range-not-hidden-in-the-transcript",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks.prepare",
        find="await self._hold_ranges(prepared)",
        replace="pass",
        check=STACKS,
        why="the same, in a shard that follows the topology",
    ),
    Mutation(
        name="gain-hidden-again-after-a-restart",
        module="ebla.storage.stack_changes",
        function="_is_news",
        find="return held.ranges != known.ranges and not is_older",
        replace="return held.ranges != known.ranges",
        check=MODEL,
        why="a pending shard that restarts hides the writes it took since it gained the range",
    ),
    Mutation(
        name="gain-not-stored",
        module="ebla.storage.stack_changes",
        function="StackChanges.hold_ranges",
        find="msgspec.structs.replace(entry, held=held)",
        replace="msgspec.structs.replace(entry, held=known or held)",
        check=MODEL,
        why="every further version hides the range once more, with the writes taken since",
    ),
    Mutation(
        name="gain-brought-back-by-replay",
        module="ebla.storage.stack_changes",
        function="StackChanges._finish_seal",
        find="replay_from=stack.replay_from",
        replace="replay_from=stack.entry.replay_from",
        check=MODEL,
        why="a start replays old rows of the range into the live layer, where nothing hides them",
    ),
    Mutation(
        name="gain-live-layer-not-sealed",
        module="ebla.storage.stack_changes",
        function="StackChanges.hold_ranges",
        find="await self._seal(stack)",
        replace="pass",
        check=MODEL,
        why="rows of the range that were not sealed yet stay visible",
    ),
    Mutation(
        name="gain-brought-back-by-a-compaction",
        module="ebla.storage.stack_changes",
        function="StackChanges._swap",
        find="hidden=merge_ranges(gained)",
        replace="hidden=()",
        check=MODEL,
        why="a compaction that began before the gain returns its rows without the mark that hides them",
    ),
    Mutation(
        name="gain-adoption-not-repeated",
        module="ebla.storage.stack_changes",
        function="_with_hidden",
        find="adopted=()",
        replace="adopted=entry.adopted",
        check=STORE,
        why="a job's rows that were hidden with the range are taken for adopted when the job commits them again",
    ),
    Mutation(
        name="gain-compaction-drops-during-an-operation",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks._keep_held",
        find="is_idle = not installed.view.snapshot.running_operation",
        replace="is_idle = True",
        check=STACKS,
        why="requests of the version before find nothing where they may still read",
    ),
    Mutation(
        name="gain-compaction-drops-by-an-unconfirmed-view",
        module="ebla.replica.replica_stacks",
        function="ReplicaStacks.on_view_installed",
        find="self._release_gc()",
        replace="self._release_gc()\nself._keep_held()",
        check=STACKS,
        why="after a restart a compaction drops ranges that the node has gained since the first, older view",
    ),
)

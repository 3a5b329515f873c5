"""Bugs of group 0: the store, its feed, its formation and its reads."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

STORE_TESTS = PytestCheck("tests/unit/group0/test_store.py")
DISCOVERY_TESTS = PytestCheck("tests/properties/test_discovery.py")
VOTER_TESTS = PytestCheck("tests/unit/control/test_voter_choice.py")
GROUP0 = SimSeeds("group0", "1-120")
FORMATION = SimSeeds("formation", "1-200")

MUTATIONS = (
    Mutation(
        name="group0-snapshot-forgets-answers",
        module="ebla.group0.snapshot",
        find="                store.answers.clients.update(clients)\n",
        replace="                pass\n",
        check=STORE_TESTS,
        why="a retry that crosses the snapshot is applied a second time",
    ),
    Mutation(
        name="group0-lock-at-propose-only",
        module="ebla.group0.store",
        find="return LockRevoked(self.lock) if lock is not None and lock != self.lock else None",
        replace="return None",
        check=GROUP0,
        why="a holder whose lock was revoked on the way still changes keys",
    ),
    Mutation(
        name="group0-members-ignore-the-lock",
        module="ebla.group0.store",
        find="        refusal: Answer | None = self._revoked(change.lock)\n        if refusal is None and",
        replace="        refusal: Answer | None = None\n        if refusal is None and",
        check=STORE_TESTS,
        why="a stale operator changes the quorum",
    ),
    Mutation(
        name="group0-feed-skips-on-snapshot",
        module="ebla.group0.store",
        find="        if self.index > before.index:\n            self.recent.append(step)\n        return step\n",
        replace="        return step\n",
        check=STORE_TESTS,
        why="whoever follows a node that was sent a snapshot misses what it covered",
    ),
    Mutation(
        name="group0-feed-forgets-deletions-on-snapshot",
        module="ebla.group0.store",
        find="        return gone + changed\n",
        replace="        return changed\n",
        check=STORE_TESTS,
        why="deleted keys live on with whoever follows",
    ),
    Mutation(
        name="group0-quorum-read-served-locally",
        module="ebla.control.group0_calls",
        find="                    await self._machine.wait_applied(index)\n",
        replace="",
        check=GROUP0,
        why="a node that lags answers with a state from before an answered write",
    ),
    Mutation(
        name="group0-create-without-full-answer",
        module="ebla.group0.discovery",
        find="    if silent:\n",
        replace="    if len(silent) == len(state.known):\n",
        check=DISCOVERY_TESTS,
        why="two halves of a partition each create a cluster",
    ),
    Mutation(
        name="group0-known-not-durable",
        module="ebla.control.formation",
        find="        await self._save_known()\n        return discovery.reply_of(self._state)\n",
        replace="        return discovery.reply_of(self._state)\n",
        check=PytestCheck("tests/unit/control/test_formation.py"),
        why="a node that answered, crashed and forgot whom it answered creates a second cluster",
    ),
    Mutation(
        name="group0-learner-promoted-early",
        module="ebla.control.voter_choice",
        find="progress.match + LAG_ENTRIES_MAX >= core.last_index and progress.match > 0",
        replace="True",
        check=VOTER_TESTS,
        why="a voter without the log holds up every commit until it has it",
    ),
    Mutation(
        name="group0-retry-applied-twice",
        module="ebla.group0.answers",
        find="    if call.serial in memory.answers:\n        return memory.answers[call.serial]\n",
        replace="",
        check=GROUP0,
        why="a command offered again after a leader change overwrites what came in between",
    ),
    Mutation(
        name="group0-missing-is-no-condition",
        module="ebla.group0.store",
        find="                    holds = actual is None\n",
        replace="                    holds = True\n",
        check=STORE_TESTS,
        why="two creators of one key both succeed",
    ),
    Mutation(
        name="group0-removed-comes-back",
        module="ebla.group0.membership",
        find="    if before.role is Role.REMOVED and member.role is not Role.REMOVED:\n",
        replace="    if before is None:\n",
        check=STORE_TESTS,
        why="a host that left counts again, with a log from before",
    ),
    Mutation(
        name="group0-void-change-takes-effect",
        module="ebla.control.group0_machine",
        find="        return applied.members_changed\n",
        replace="        return True\n",
        check=PytestCheck("tests/unit/control/test_group0_machine.py"),
        why="the quorum follows a change that the store refused",
    ),
    Mutation(
        name="group0-founding-not-durable",
        module="ebla.control.formation",
        find="                    await self._mark(Stage.FOUNDING, history=HistoryId(self._context.chance.uuid()))\n",
        replace="                    history = HistoryId(self._context.chance.uuid())\n"
        "                    self._marks.mark = msgspec.structs.replace(self._marks.mark, history=history)\n",
        check=FORMATION,
        why="a founder that died in the middle founds another history over the first",
    ),
    Mutation(
        name="group0-commit-notice-given-up",
        module="ebla.control.commit_notices",
        find="                leaving.append(before)\n",
        replace="                pass\n",
        check=PytestCheck("tests/unit/control/test_commit_notices.py"),
        why="what is committed is told only by the next heartbeat",
    ),
    Mutation(
        name="group0-snapshot-cut-is-damage",
        module="ebla.group0.snapshot",
        find="        self._rest = data[offset:]\n",
        replace="",
        check=STORE_TESTS,
        why="a state with a few large values cannot be read back, and the node never starts again",
    ),
)

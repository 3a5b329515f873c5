"""Bugs of operations: the record, the lock, the repair, the janitor, and the entries of earlier releases."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

CRASHES = PytestCheck("tests/unit/control/operations/test_crash_points.py")
RUNS = PytestCheck("tests/unit/control/operations/test_runner.py")
STORE_TESTS = PytestCheck("tests/unit/group0/test_store.py")
JOIN_TESTS = PytestCheck("tests/unit/control/coordinator/test_node_actions.py")
REQUESTS = PytestCheck("tests/unit/control/operations/test_requests.py")
CHOICE_TESTS = PytestCheck("tests/unit/control/group0/test_voter_assignment.py")
VOTER_TESTS = PytestCheck("tests/unit/group0/test_voters.py")
CLUSTER_TESTS = PytestCheck("tests/sim/test_operations.py")
ATOMIC = SimSeeds("atomic_change", "1-40")
STEPS = "ebla.group0.operation_steps"
RUNNER = "ebla.control.operations.runner"

MUTATIONS = (
    Mutation(
        name="operation-record-not-with-its-keys",
        module=STEPS,
        function="_keys_and_record",
        find="(*changes, put), record.lock)",
        replace="changes or (put,), record.lock)",
        check=CRASHES,
        why="a leader dies after the keys, and nobody knows that members have to follow",
    ),
    Mutation(
        name="operation-keys-ignore-the-lock",
        module=STEPS,
        function="_keys_and_record",
        find="(*changes, put), record.lock)",
        replace="(*changes, put), None)",
        check=CRASHES,
        why="a leader that was overtaken writes its record over what the next one has done",
    ),
    Mutation(
        name="operation-members-ignore-the-lock",
        module="ebla.group0.store",
        function="Group0Store._apply_members",
        find="refusal: CommandAnswer | None = self._revoked(change.lock)",
        replace="refusal: CommandAnswer | None = None",
        check=CRASHES,
        why="a leader that was overtaken adds a host whose row is left",
    ),
    Mutation(
        name="operation-deletion-ignores-the-lock",
        module=STEPS,
        function="_ending",
        find="return Transaction((_unchanged(found),), changes, run.lock)",
        replace="return Transaction((), changes, None)",
        check=CRASHES,
        why="a leader that was overtaken deletes the record of another operation",
    ),
    Mutation(
        name="operation-add-repeated",
        module="ebla.group0.operation_table",
        function="",
        find="plan=_plan_add, repair=Repair.UNDO",
        replace="plan=_plan_add, repair=Repair.REPEAT",
        check=CRASHES,
        why="a node that gave up joining becomes a member for good",
    ),
    Mutation(
        name="operation-undo-forgets-the-row",
        module=STEPS,
        function="_undo",
        find="transaction = _keys_and_record(commands, removal, state)",
        replace="transaction = _keys_and_record((), removal, state)",
        check=CRASHES,
        why="the row of a removed host waits to join for ever",
    ),
    Mutation(
        name="operation-success-before-the-deletion",
        module=RUNNER,
        function="OperationRun._complete",
        find='if not await self._commit(handle, ending.transaction, "delete", is_own=False):\n    raise _LockLost',
        replace="pass",
        check=CRASHES,
        why="a new node hears that it is a member, and the janitor removes it",
    ),
    Mutation(
        name="operation-half-added-host-driven-on",
        module="ebla.control.coordinator.node_actions",
        function="NodeActions._commit_for",
        find="if found is not None and node.host in found.value.hosts:",
        replace="if found is None:",
        check=JOIN_TESTS,
        why="the add of a node that owns tokens is undone",
    ),
    Mutation(
        name="operation-state-kept-across-a-lock-mismatch",
        module=RUNNER,
        function="OperationRun._read",
        find="return read_state(store, topology.snapshot)",
        replace=(
            'self._kept = getattr(self, "_kept", None) or read_state(store, topology.snapshot)\nreturn self._kept'
        ),
        check=CRASHES,
        why="a second attempt decides by what the first one read, and never succeeds",
    ),
    Mutation(
        name="operation-quarantine-retried",
        module=STEPS,
        function="_continue",
        find="if illegal is not None:\n    return rejected(state, run, illegal)",
        replace="if illegal is not None:\n    return Refusal(reason=illegal)",
        check=RUNS,
        why="an operation that can never be completed blocks every other one for ever",
    ),
    Mutation(
        name="operation-failed-repair-does-not-arm-the-janitor",
        module="ebla.control.operations.janitor",
        function="Janitor.repair_now",
        find="self._armed_ms = self._deps.clock.boot_ms()",
        replace="self._armed_ms = 1 << 60",
        check=RUNS,
        why="an operation that could not be repaired once stays unfinished",
    ),
    Mutation(
        name="operation-old-entry-without-a-lock-rejected",
        module="ebla.group0.store",
        function="Group0Store._requires_lock",
        find="return Feature.MEMBERSHIP_LOCK in enabled",
        replace="return True",
        check=STORE_TESTS,
        why="a node that replays a log of an earlier release computes other members than its peers",
    ),
    Mutation(
        name="operation-entry-without-a-lock-taken",
        module="ebla.group0.store",
        function="Group0Store._apply_members",
        find="if change.lock is None and self._requires_lock():",
        replace="if False:",
        check=STORE_TESTS,
        why="members change without their keys",
    ),
    Mutation(
        name="operation-outcome-not-applied-after-the-record",
        module=RUNNER,
        function="OperationRun._commit",
        find="self._may_be_committed |= is_own",
        replace="pass",
        check=RUNS,
        why="an operator repeats a removal that still happens",
    ),
    Mutation(
        name="operation-voters-chosen-meanwhile",
        module="ebla.control.group0.voter_assignment",
        function="assign_voters",
        find="if store.get(UNFINISHED_OPERATION_KEY) is not None:",
        replace="if False:",
        check=CHOICE_TESTS,
        why="a joiner whose leader died is thrown out before it can ask again",
    ),
    Mutation(
        name="operation-outcome-forgets-an-earlier-leader",
        module="ebla.control.operations.operation_service",
        function="_as_known",
        find="if not may_be_committed or error.code in DECIDED or error.outcome is Outcome.UNKNOWN:",
        replace="if True:",
        check=REQUESTS,
        why="an operator repeats a removal that still happens",
    ),
    Mutation(
        name="operation-excluded-host-chosen",
        module="ebla.group0.voters",
        function="choose_voters",
        find="pool = [one for one in present if not one.excluded]",
        replace="pool = present",
        check=VOTER_TESTS,
        why="a dead node votes again, and the quorum waits for it",
    ),
    Mutation(
        name="operation-leader-removed-without-a-transfer",
        module="ebla.control.operations.hand_over",
        function="successors",
        find="losing.update(operation.hosts)",
        replace="pass",
        check=CLUSTER_TESTS,
        why="the removal of the leader ends in an unknown outcome",
    ),
    Mutation(
        name="operation-janitor-demotes-its-own-node",
        module="ebla.control.operations.janitor",
        function="Janitor.repair_now",
        find="await hand_over(self._deps)",
        replace="pass",
        check=CRASHES,
        why="a repair ends the leadership of its own node, and the record waits for a second delay",
    ),
    Mutation(
        name="operation-steps-under-a-revoked-lock-in-a-cluster",
        module="ebla.group0.store",
        function="Group0Store._revoked",
        find="return LockRevoked(self.lock) if lock is not None and lock != self.lock else None",
        replace="return None",
        check=ATOMIC,
        why="two leaders change members at once",
        limit_s=600,
    ),
)

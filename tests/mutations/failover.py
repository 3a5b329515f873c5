"""Bugs of failover: whose opinions count, when the time runs, how often it acts, and what an excluded node does."""

from tests.mutations.framework import Mutation, PytestCheck

CHECKS = PytestCheck("tests/unit/group0/test_failover.py")
AUTOMATIC = PytestCheck("tests/unit/group0/test_auto_failover.py")
LEADER = PytestCheck("tests/unit/control/operations/test_failover.py")
CRASHES = PytestCheck("tests/unit/control/operations/test_crash_points.py")
TOPOLOGY = PytestCheck("tests/unit/topology/apply/test_cluster.py")
EXCLUSIONS = PytestCheck("tests/unit/control/topology/test_exclusions.py")
STORIES = PytestCheck("tests/sim/test_failover.py")
SHARDS = PytestCheck("tests/sim/test_failover.py::test_an_excluded_node_serves_nothing")
AUTO = "ebla.group0.auto_failover"

MUTATIONS = (
    Mutation(
        name="failover-checks-before-the-quorum",
        module="ebla.control.operations.runner",
        function="OperationRunner.run",
        find="run = OperationRun(self._deps, self.metrics, operation, check)",
        replace=(
            "if check is not None:\n"
            "    await check(operation, None, self._deps.topology.snapshot, self._deps.group0.running.store.members)\n"
            "run = OperationRun(self._deps, self.metrics, operation, None)"
        ),
        check=LEADER,
        why="a leader that was cut off excludes a live node by what it saw before",
    ),
    Mutation(
        name="failover-opinions-from-before-the-quorum",
        module="ebla.control.operations.failover",
        function="Failover._gather",
        find="asked_ms, answers = self._now_ms(), dict[HostId, _Answer]()",
        replace="asked_ms, answers = 0, self._answers",
        check=LEADER,
        why="a node that has come back is excluded",
    ),
    Mutation(
        name="failover-opinion-of-the-leader-alone",
        module="ebla.group0.failover",
        function="Opinions.is_down",
        find="len(self.down(host)) >= self.majority",
        replace="len(self.down(host)) >= 1",
        check=CHECKS,
        why="a leader with one broken link excludes nodes that all others reach",
    ),
    Mutation(
        name="failover-opinions-of-learners",
        module="ebla.group0.failover",
        function="Opinions.__init__",
        find="(one for one in opinions if one.voter in self.voters)",
        replace="opinions",
        check=CHECKS,
        why="nodes that do not vote decide who votes",
    ),
    Mutation(
        name="failover-force-overrides-the-remaining-voters",
        module="ebla.group0.failover",
        function="",
        find="FORCIBLE = (CheckKind.DOWN, CheckKind.REPLICAS)",
        replace="FORCIBLE = tuple(CheckKind)",
        check=CHECKS,
        why="a forced failover leaves a group without a majority",
    ),
    Mutation(
        name="failover-last-replica-not-checked",
        module="ebla.group0.failover",
        function="tables_without_replica",
        find="found.append(table.full_name)",
        replace="pass",
        check=CHECKS,
        why="automatic failover takes the only live copy of a table out of service",
    ),
    Mutation(
        name="failover-timer-continues-across-leaders",
        module=AUTO,
        function="AutoFailover.evaluate",
        find="if evaluation.term != self._term or has_stalled or not evaluation.settings.enabled:",
        replace="if has_stalled or not evaluation.settings.enabled:",
        check=AUTOMATIC,
        why="a new leader acts on an outage that it has not watched",
    ),
    Mutation(
        name="failover-timer-continues-across-a-stall",
        module=AUTO,
        function="AutoFailover.evaluate",
        find="if evaluation.term != self._term or has_stalled or not evaluation.settings.enabled:",
        replace="if evaluation.term != self._term or not evaluation.settings.enabled:",
        check=AUTOMATIC,
        why="a leader that stood still excludes nodes that were up meanwhile",
    ),
    Mutation(
        name="failover-timer-survives-a-sign-of-life",
        module=AUTO,
        function="AutoFailover.evaluate",
        find="self._down_since = {host: self._down_since.get(host, now_ms) for host in candidates}",
        replace="self._down_since |= {host: self._down_since.get(host, now_ms) for host in candidates}",
        check=AUTOMATIC,
        why="a node that flaps is chased",
    ),
    Mutation(
        name="failover-max-count-ignored",
        module=AUTO,
        function="AutoFailover._judge",
        find="if len(group) > left:",
        replace="if False:",
        check=AUTOMATIC,
        why="one broken switch excludes node after node",
    ),
    Mutation(
        name="failover-group-in-parts",
        module=AUTO,
        function="AutoFailover._groups",
        find="<= GROUP_MS",
        replace="< 0",
        check=AUTOMATIC,
        why="of two nodes that fail together one is excluded, which the limit should prevent",
    ),
    Mutation(
        name="failover-repeat-counted-twice",
        module="ebla.group0.operation_steps",
        function="_continue",
        find="transaction = _keys_and_record((), renewed, state)",
        replace=(
            "row_state = msgspec.structs.replace(\n"
            "    state.snapshot.state, failover_count=state.snapshot.state.failover_count + 1\n"
            ")\n"
            "transaction = _keys_and_record((), renewed, state)\n"
            "if record.kind is OperationKind.EXCLUDE:\n"
            "    change = PutKey('topology/state', encode_stored(StoredValue(row_state)))\n"
            "    transaction = msgspec.structs.replace(transaction, changes=(*transaction.changes, change))"
        ),
        check=CRASHES,
        why="automatic failover stops although its limit is not reached",
    ),
    Mutation(
        name="failover-failed-request-includes",
        module="ebla.topology.apply.draft",
        function="TopologyDraft.forget_ignored",
        find="bound = [one.host for one in exclusions]",
        replace="bound = [one.host for one in exclusions[:0]]",
        check=TOPOLOGY,
        why="barriers wait for a dead node again because another operation failed",
    ),
    Mutation(
        name="failover-excluded-node-serves",
        module="ebla.node.shard_process",
        function="ShardProcess._has_right",
        find="if self.own.host in self.view.down:",
        replace="if False:",
        check=SHARDS,
        why="a client reads rows that are arbitrarily old",
    ),
    Mutation(
        name="failover-hearsay-ignored",
        module="ebla.control.topology.exclusions",
        function="Exclusions.heard",
        find="if version > self._heard:",
        replace="if False:",
        check=EXCLUSIONS,
        why="a node that cannot reach the leader serves old rows although others know that it is excluded",
    ),
    Mutation(
        name="failover-hearsay-for-ever",
        module="ebla.control.topology.exclusions",
        function="Exclusions._is_own_by_hearsay",
        find="return self._heard > self._topology.snapshot.version",
        replace="return self._heard > 0",
        check=EXCLUSIONS,
        why="a recovered node does not serve",
    ),
    Mutation(
        name="failover-include-without-a-barrier",
        module="ebla.control.operations.failover",
        function="Failover._check_include",
        find="await self._require_barrier(facts, host, operation)",
        replace="pass",
        check=LEADER,
        why="a recovered node serves rows by an arbitrarily old version of the topology",
    ),
    Mutation(
        name="failover-short-stall-unnoticed",
        module=AUTO,
        function="AutoFailover.evaluate",
        find="is_late or evaluation.pause_ms > STALL_MS",
        replace="is_late",
        check=AUTOMATIC,
        why="a leader that stood still for over a second acts on answers from before",
    ),
    Mutation(
        name="failover-include-without-a-lease",
        module="ebla.group0.failover",
        function="check_inclusion",
        find="recovery.is_leased",
        replace="True",
        check=CHECKS,
        why="after a recovery every activity waits for a lease of an earlier leader",
    ),
)

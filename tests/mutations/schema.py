"""Bugs of schema changes and of how the first nodes join the ring."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SCHEMA = SimSeeds("schema", "1-40")
WISHES = PytestCheck("tests/unit/control/topology/test_schema_plan.py")
JOINS = PytestCheck("tests/unit/control/coordinator/test_awaited_barrier.py")
CHANGES = PytestCheck("tests/unit/control/topology/test_schema_service.py")
TOGETHER = PytestCheck("tests/unit/topology/apply/test_command.py")

MUTATIONS = (
    Mutation(
        name="schema-commits-without-condition",
        module="ebla.topology.apply.command",
        function="apply_commands",
        find="conditions.update({each.key: each for each in applied.transaction.conditions})",
        replace="",
        check=SCHEMA,
        why="two nodes create the same table at once, and one of them is lost",
    ),
    Mutation(
        name="schema-answers-before-every-node-has-it",
        module="ebla.control.topology.schema_service",
        function="SchemaService.change",
        find="outcome = await self._deps.barriers.request(members, request, remaining_ms(expires))",
        replace="outcome = BarrierOutcome()",
        check=SCHEMA,
        why="the next request on another node does not know the table",
    ),
    Mutation(
        name="schema-node-not-asked-counts-as-told",
        module="ebla.control.topology.barrier_client",
        function="BarrierClient._request_one",
        find="lacking[host] = last",
        replace="",
        check=CHANGES,
        why="a change is reported done while a live node lacks it",
    ),
    Mutation(
        name="schema-unknown-outcome-taken-for-none",
        module="ebla.control.topology.schema_service",
        function="SchemaService._commit",
        find="return await self._find_out(planned, error, remaining_ms(expires))",
        replace="return None",
        check=CHANGES,
        why="one request creates a table twice, or its creator gets the error that the table exists",
    ),
    Mutation(
        name="schema-plans-on-what-this-node-knows",
        module="ebla.control.topology.schema_service",
        function="SchemaService._plan",
        find="snapshot = await self._deps.read(remaining_ms(expires))",
        replace="snapshot = self._deps.topology.snapshot",
        check=CHANGES,
        why="a lagging node says that a dropped table exists, or that a new one does not",
    ),
    Mutation(
        name="schema-commands-together-keep-the-first-change",
        module="ebla.topology.apply.command",
        function="apply_commands",
        find="changes.update({each.key: each for each in applied.transaction.changes})",
        replace="changes = {**{each.key: each for each in applied.transaction.changes}, **changes}",
        check=TOGETHER,
        why="several changes at once get the version of the first",
    ),
    Mutation(
        name="joins-barrier-forgets-who-comes-in",
        module="ebla.control.coordinator.node_actions",
        function="awaited_hosts",
        find="if node.state is not NodeState.NONE",
        replace="if node.state is NodeState.NORMAL",
        check=JOINS,
        why="a node serves requests with a version of the ring that the cluster no longer uses",
    ),
)

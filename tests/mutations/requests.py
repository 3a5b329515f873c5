"""Bugs of requests that operators submit, follow and are warned of."""

from tests.mutations.framework import Mutation, PytestCheck

SERVICE = "ebla.control.coordinator.request_service"
LOSSES = "ebla.topology.routing.replica_losses"
SUBMITTED = PytestCheck("tests/unit/control/coordinator/test_request_service.py")
COUNTED = PytestCheck("tests/unit/topology/routing/test_replica_losses.py")
FOLLOWED = PytestCheck("tests/unit/client/test_request_following.py")
RESET = PytestCheck("tests/unit/cli/cluster/test_reset_node.py")

MUTATIONS = (
    Mutation(
        name="requests-excluded-node-taken-for-dead",
        module=SERVICE,
        function="RequestService._require",
        find="silent = self._silent()",
        replace="silent = self._topology.down()",
        check=SUBMITTED,
        why="a node that runs, and may serve an old view, loses its tokens",
    ),
    Mutation(
        name="requests-unknown-outcome-called-unavailable",
        module=SERVICE,
        function="RequestService.submit",
        find="may_be_stored |= error.outcome is Outcome.UNKNOWN",
        replace="pass",
        check=SUBMITTED,
        why="an operator who is told that nothing was stored does not look for the request that runs",
    ),
    Mutation(
        name="requests-second-repair-not-recognised",
        module=SERVICE,
        function="stored_request",
        find="one for one in queue if one.kind is request.kind",
        replace="one for one in queue if one.id == request.id",
        check=SUBMITTED,
        why="a second check of the streams is refused, or makes a second generation",
    ),
    Mutation(
        name="requests-removal-counts-the-dead-node",
        module=LOSSES,
        function="concerns_about_removal",
        find="{*gone, leaving.host}",
        replace="gone - {leaving.host}",
        check=COUNTED,
        why="an operator removes the only replica of a range without being asked",
    ),
    Mutation(
        name="requests-done-before-the-last-barrier",
        module="ebla.client.request_following",
        function="RequestFollower.check",
        find="request.is_open or open_report(report, self.request) is not None",
        replace="request.is_open",
        check=FOLLOWED,
        why="a command reports success while a node still routes by the old ring",
    ),
    Mutation(
        name="requests-left-node-is-reset-by-up",
        module="ebla.cli.cluster.reset_node",
        function="cannot_join_as_it_is",
        find="was_member(mark.stage, answer)",
        replace="False",
        check=RESET,
        why="`ebla up` empties the folder of a node that has left, and lets it join again",
    ),
    Mutation(
        name="requests-left-node-ends-in-failure",
        module="ebla.node.control_process",
        function="ControlProcess._refuse",
        find="not self._has_left",
        replace="True",
        check=PytestCheck("tests/unit/node/test_control_process.py"),
        why="a node that left as requested ends with status 3 if its removal arrives before it has stopped",
    ),
    Mutation(
        name="requests-replacement-counted-before-its-shards-run",
        module="ebla.control.coordinator.node_actions",
        function="NodeActions._pass",
        find="await self.wait_version(self._run.snapshot.version, node.request)",
        replace="pass",
        check=PytestCheck("tests/unit/control/coordinator/test_node_actions.py"),
        why="QUORUM writes fail until the shards of the new node listen: one of the natural replicas is dead",
    ),
)

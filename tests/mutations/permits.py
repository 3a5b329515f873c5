"""Bugs of the pipeline's permits: a pipeline that acts beside that of the next leader."""

from tests.mutations.framework import Mutation, PytestCheck

PLACEMENT = PytestCheck("tests/unit/control/test_pipeline_placement.py")
PROCESS = PytestCheck("tests/unit/node/test_pipeline_process.py")

MUTATIONS = (
    Mutation(
        name="permits-ignored-before-an-effect",
        module="ebla.node.pipeline_process",
        function="Permit.check",
        find="if self.left_ms == 0:",
        replace="if self.left_ms < 0:",
        check=PROCESS,
        why="a pipeline that was frozen goes on beside that of the next leader",
    ),
    Mutation(
        name="permits-checked-before-the-connection",
        module="ebla.wire.client_connection",
        function="RpcClientConnection.call",
        find="before_send()",
        replace="pass",
        check=PytestCheck("tests/unit/wire/test_peers.py"),
        why="a request that waited for its connection is sent after the permit has ended",
    ),
    Mutation(
        name="permits-ignored-by-the-engine",
        module="ebla.node.pipeline_process",
        function="PermittedEngine.run",
        find="self.permit.check()",
        replace="pass",
        check=PROCESS,
        why="Spark moves data for a job that the next leader runs already",
    ),
    Mutation(
        name="permits-counted-from-the-arrival-of-the-answer",
        module="ebla.node.pipeline_process",
        function="PipelineProcess.control_answered",
        find="sent_ms + answer.permit_ms",
        replace="self.environment.clock.boot_ms() + answer.permit_ms",
        check=PROCESS,
        why="an answer that waited in the socket of a frozen pipeline lets it act after its leases were lost",
    ),
    Mutation(
        name="permits-withdrawn-with-the-next-heartbeat",
        module="ebla.control.pipeline_placement",
        function="PipelinePlacement._permit_acting",
        find="self._changed.wake()",
        replace="pass",
        check=PLACEMENT,
        why="the next leader waits for a pipeline that does not know it",
    ),
    Mutation(
        name="permits-withdrawal-not-heard",
        module="ebla.node.pipeline_process",
        function="PipelineProcess._watch_permit",
        find="self.permit.withdraw(answer.withdrawn)",
        replace="pass",
        check=PROCESS,
        why="the pipeline acts until its permit runs out, and is killed for it",
    ),
    Mutation(
        name="permits-given-again-by-a-late-answer",
        module="ebla.node.pipeline_process",
        function="Permit.renew",
        find="until_ms if number > self._withdrawn else 0",
        replace="until_ms",
        check=PROCESS,
        why="a pipeline acts again after it has confirmed that it stopped",
    ),
    Mutation(
        name="permits-driver-waited-for-without-bound",
        module="ebla.control.pipeline_placement",
        function="PipelinePlacement._permit_acting",
        find="self._children.kill(PIPELINE, f'did not stop to act within {stop_ms} ms')",
        replace="pass",
        check=PLACEMENT,
        why="a frozen pipeline keeps every later leader from running jobs, or makes control restart",
    ),
    Mutation(
        name="permits-activity-over-before-the-driver-stops",
        module="ebla.control.pipeline_placement",
        function="PipelinePlacement._permit_acting",
        find="while self._acts(number):",
        replace="while False:",
        check=PLACEMENT,
        why="nodes grant their leases to the next leader while the pipeline of the former one acts",
    ),
)

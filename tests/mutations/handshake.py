"""Bugs of the join handshake: attempts, acceptance, rejection, and what the receiver checks."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

TRANSCRIPTS = PytestCheck("tests/scenarios/test_join_transcripts.py")
SHELL = PytestCheck("tests/unit/control/group0/test_join_shell.py")
RECEIVER = PytestCheck("tests/unit/control/topology/test_join_service.py")
HANDSHAKE = "ebla.group0.join_handshake"
ADMISSION = "ebla.group0.join_admission"
FORMATION = "ebla.control.group0.formation"

MUTATIONS = (
    Mutation(
        name="handshake-response-without-attempt",
        module=HANDSHAKE,
        function="JoinHandshake.respond",
        find="if response.attempt != self.attempt:",
        replace="if False:",
        check=TRANSCRIPTS,
        why="a process starts Raft for the join of a process before it, which the coordinator gave up",
    ),
    Mutation(
        name="handshake-early-response-processed",
        module=HANDSHAKE,
        function="JoinHandshake.respond",
        find="self._held = response\nreturn ResponseDecision.HELD",
        replace="self._process(response)\nreturn ResponseDecision.PROCESSED",
        check=TRANSCRIPTS,
        why="a node acts on a response before it knows that its request was committed",
    ),
    Mutation(
        name="handshake-held-response-lost",
        module=HANDSHAKE,
        function="JoinHandshake.request_waits",
        find="self._process(self._held)",
        replace="pass",
        check=TRANSCRIPTS,
        why="a node whose response came early waits although it was answered",
    ),
    Mutation(
        name="handshake-raft-before-acceptance",
        module=FORMATION,
        function="Formation._join",
        find="while handshake.phase in (JoinPhase.REQUESTING, JoinPhase.WAITING):",
        replace="""self._join_state.mark = type(self._join_state.mark)(stage=JoinStage.ACCEPTED)
if handshake.rejection is None:
    asking.cancel()
    return ()
while handshake.phase in (JoinPhase.REQUESTING, JoinPhase.WAITING):""",
        check=SimSeeds("formation", "1-5"),
        why="a node that was not accepted runs a Raft server with an empty log under its id",
    ),
    Mutation(
        name="handshake-acceptance-not-durable",
        module=FORMATION,
        function="Formation._join",
        find="await self._mark(\n    JoinStage.ACCEPTED,",
        replace="await self._mark(\n    JoinStage.JOINING,",
        check=SHELL,
        why="an accepted node that restarts requests again, and is refused",
    ),
    Mutation(
        name="handshake-reply-before-raft",
        module="ebla.control.group0.node",
        function="Group0Node.join_response",
        find="await self.opened.wait()",
        replace="pass",
        check=SHELL,
        why="the coordinator goes on with a node whose acceptance is not durable",
    ),
    Mutation(
        name="handshake-rejection-not-learned",
        module=HANDSHAKE,
        function="JoinHandshake.query_answered",
        find="self._reject(rejected('' if request is None else request.error))",
        replace="pass",
        check=TRANSCRIPTS,
        why="a rejected node waits forever, and its operator never learns why",
    ),
    Mutation(
        name="handshake-left-node-starts-again",
        module=HANDSHAKE,
        function="restart_refusal",
        find="if answer.state is NodeState.LEFT:",
        replace="if False:",
        check=TRANSCRIPTS,
        why="a node whose join was rolled back runs on without a cluster and without a word",
    ),
    Mutation(
        name="handshake-refusal-repeated",
        module=HANDSHAKE,
        function="JoinHandshake.request_failed",
        find="self._reject(NotAdmitted(error.message, advice=error.advice))",
        replace="pass",
        check=TRANSCRIPTS,
        why="a node that can never join repeats its request instead of saying what to do",
    ),
    Mutation(
        name="handshake-second-attempt-admitted",
        module=ADMISSION,
        function="is_submitted",
        find="known is not None and known.host == request.node.host",
        replace="request.node.host in snapshot.nodes",
        check=TRANSCRIPTS,
        why="a process waits for a response that goes to the attempt of a process before it",
    ),
    Mutation(
        name="handshake-address-taken",
        module=ADMISSION,
        function="",
        find="    _has_address_of_another,\n",
        replace="",
        check=TRANSCRIPTS,
        why="two hosts share an address, and requests for one reach the other",
    ),
    Mutation(
        name="handshake-predecessor-keeps-its-turn",
        module=ADMISSION,
        function="join_commands",
        find="(*superseded, SubmitJoin(",
        replace="(SubmitJoin(",
        check=TRANSCRIPTS,
        why="joins of processes that are gone delay every other join until each counts as silent",
    ),
    Mutation(
        name="handshake-refused-by-old-state",
        module="ebla.control.topology.join_service",
        function="JoinService._request",
        find="snapshot = await deps.read(left_ms)",
        replace="snapshot = deps.topology.snapshot",
        check=RECEIVER,
        why="a member that lags admits a host that has left, or refuses one that may join",
    ),
)

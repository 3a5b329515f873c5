"""Bugs of bulk sessions: open again after their close, closed before all effects have ended, open for ever."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SIMULATED = SimSeeds("sessions", "1-30")
SHELL = PytestCheck("tests/unit/control/topology/test_bulk_sessions.py")
DECISIONS = PytestCheck("tests/unit/control/topology/test_session_plan.py")
DRAFT = PytestCheck("tests/unit/topology/apply/test_draft.py")

MUTATIONS = (
    Mutation(
        name="sessions-opened-by-a-late-attempt",
        module="ebla.topology.apply.schema",
        function="_open_bulk_session",
        find="draft.require_unchanged(keys.STATE)\ndraft.require_unchanged(keys.session_key(session.id))",
        replace="draft.require_unchanged(keys.session_key(session.id))",
        check=DRAFT,
        why="a closed session opens again, and abandoned tasks may write",
    ),
    Mutation(
        name="sessions-opened-by-a-late-request",
        module="ebla.topology.apply.schema",
        function="may_be_closed",
        find="return session in snapshot.state.bulk_closed or forgotten",
        replace="return False",
        check=SIMULATED,
        why="a repeated request, delayed in a paused node, opens a session that was closed",
    ),
    Mutation(
        name="sessions-closed-without-a-version",
        module="ebla.topology.apply.schema",
        function="_close_sessions",
        find="draft.step(**_remembered(draft, ending))",
        replace="draft.set_state(**_remembered(draft, ending))",
        check=SIMULATED,
        why="a close is answered after the barrier of the previous version, before any node has seen it",
    ),
    Mutation(
        name="sessions-guards-not-drained",
        module="ebla.control.topology.bulk_sessions",
        function="BulkSessionService.close",
        find="NodeBarrierRequest(now.version, drain=True)",
        replace="NodeBarrierRequest(now.version, drain=False)",
        check=SHELL,
        why="a side effect in flight ends after the close was answered",
    ),
    Mutation(
        name="sessions-closed-before-every-node-has-it",
        module="ebla.control.topology.bulk_sessions",
        function="BulkSessionService.close",
        find="outcome = await self._deps.barriers.request(members, request, remaining_ms(expires))",
        replace="outcome = BarrierOutcome()",
        check=SIMULATED,
        why="a node that has not seen the close hands out guards for a closed session",
    ),
    Mutation(
        name="sessions-unknown-close-taken-for-done",
        module="ebla.control.topology.bulk_sessions",
        function="BulkSessionService._settle",
        find="unanswered = error\ncontinue",
        replace="return snapshot",
        check=SHELL,
        why="a close is answered although it was lost",
    ),
    Mutation(
        name="sessions-deadline-not-enforced",
        module="ebla.control.topology.bulk_sessions",
        function="sessions_to_end",
        find="overdue = sessions_to_close(snapshot, times.wall_ms)",
        replace="overdue = ()",
        check=SHELL,
        why="the session of an owner that crashed stays open for ever",
    ),
    Mutation(
        name="sessions-clock-ahead-lives-for-ever",
        module="ebla.control.topology.bulk_sessions",
        function="sessions_to_end",
        find="if times.boot_ms - since_ms >= times.life_ms_max]",
        replace="if False]",
        check=DECISIONS,
        why="a node whose clock is a year ahead opens a session that does not expire",
    ),
    Mutation(
        name="sessions-local-state-believed",
        module="ebla.control.topology.deps",
        function="TopologyDeps.read",
        find="await self.group0.running.client.read_barrier(within_ms)",
        replace="",
        check=SHELL,
        why="a lagging node says that a session is closed which it does not know yet",
    ),
)

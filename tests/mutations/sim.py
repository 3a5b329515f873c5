"""Bugs of the simulator itself: it finds nothing if runs are not reproducible or faults are weaker than real ones."""

from tests.mutations.framework import Mutation, PytestCheck

LOOP = PytestCheck("tests/sim/test_loop.py")
DISK = PytestCheck("tests/sim/test_disk.py")
CHECKER = "ebla.sim.checkers.linearizability"
CHECKER_TESTS = PytestCheck("tests/unit/sim/test_linearizability.py")

MUTATIONS = (
    Mutation(
        name="sim-tasks-hash-by-address",
        module="ebla.sim.loop",
        function="SimTask.__hash__",
        find="def __hash__(self) -> int:\n    return self.number",
        replace="def __hash__(self) -> int:\n    return id(self)",
        check=PytestCheck(
            "tests/sim/test_determinism.py::test_cancellation_and_wait_order_are_the_same_in_every_process"
        ),
        why="a seed that failed does not fail again",
    ),
    Mutation(
        name="sim-order-not-drawn",
        module="ebla.sim.loop",
        function="SimLoop._turn",
        find="self._order.shuffle(batch)",
        replace="pass",
        check=LOOP,
        why="races that need another order of ready callbacks are never tried",
    ),
    Mutation(
        name="sim-last-words",
        module="ebla.sim.loop",
        function="SimLoop._run",
        find="if not incarnation.alive:\n    return\nif incarnation.paused:",
        replace="if incarnation.paused:",
        check=LOOP,
        why="a crashed process still runs its scheduled callbacks",
    ),
    Mutation(
        name="sim-crash-loses-nothing",
        module="ebla.sim.disk",
        function="_settle_content",
        find="if survives >= 0.6:",
        replace="if survives >= 0.0:",
        check=DISK,
        why="code that forgets a sync looks correct",
    ),
    Mutation(
        name="sim-failed-sync-tried-again",
        module="ebla.sim.disk",
        function="SimDisk.sync_content",
        find="content.unsynced = [write for write in content.unsynced if write.number > number]\nself._narrative",
        replace="self._narrative",
        check=DISK,
        why="code that trusts the sync after a failed one looks correct",
    ),
    Mutation(
        name="sim-one-fault-heals-all",
        module="ebla.sim.disk",
        function="SimDisk.inject",
        find="self._strains = [held for held in self._strains if held is not strain]",
        replace="self._strains = []",
        check=PytestCheck("tests/unit/sim/test_faults.py"),
        why="overlapping faults are weaker than configured",
    ),
    Mutation(
        name="sim-boot-clock-open",
        module="ebla.sim.sandbox",
        function="",
        find='"clock_gettime_ns",',
        replace="",
        check=PytestCheck("tests/sim/test_leaks.py"),
        why="runs of a process that reads the real clock are not reproducible",
    ),
    Mutation(
        name="sim-kill-cuts-nothing",
        module="ebla.sim.network",
        function="Network.incarnation_ended",
        find="if not with_machine:",
        replace="if False:",
        check=PytestCheck("tests/sim/test_network.py"),
        why="peers of a killed process wait for a timeout, although a real kernel would reset the connection",
    ),
    Mutation(
        name="checker-forgets-real-time",
        module=CHECKER,
        function="_Search._candidates",
        find="if calls[index] > horizon:\n    break",
        replace="",
        check=CHECKER_TESTS,
        why="a stale read would count as correct",
    ),
    Mutation(
        name="checker-unknown-from-the-start",
        module=CHECKER,
        function="_Search._push_next",
        find="if operation.invoked > horizon:\n    break",
        replace="",
        check=CHECKER_TESTS,
        why="a value read before it was written would count as correct",
    ),
    Mutation(
        name="checker-unknown-must-happen",
        module=CHECKER,
        function="_Search.run",
        find="if now[0] == total:",
        replace="if now[0] == total and now[2].bit_count() == len(self._unknown):",
        check=CHECKER_TESTS,
        why="a lost request would count as a bug",
    ),
    Mutation(
        name="checker-memory-without-state",
        module=CHECKER,
        function="_Search.run",
        find="if now in seen:\n    continue\nseen.add(now)",
        replace="if now[:3] in seen:\n    continue\nseen.add(now[:3])",
        check=CHECKER_TESTS,
        why="correct histories would count as wrong",
    ),
)

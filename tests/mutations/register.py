"""Bugs of the example register, which measure the simulator. If one escapes, the injected faults are too weak."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SEEDS = SimSeeds("register", "1-200")
REGISTER = "ebla.sim.register"
CHECKER = "ebla.sim.checkers.linearizability"
CHECKER_TESTS = PytestCheck("tests/unit/sim/test_linearizability.py")


def _bug(name: str, module: str, change: tuple[str, str, str], why: str) -> Mutation:
    return Mutation(
        name=f"register-{name}",
        module=module,
        function=change[0],
        find=change[1],
        replace=change[2],
        check=SEEDS,
        why=why,
    )


MUTATIONS = (
    _bug(
        "answer-before-sync",
        REGISTER,
        ("RegisterStore.save", "await self._journal.sync()", ""),
        "an acknowledged change is lost after a power cut",
    ),
    _bug(
        "send-before-store",
        REGISTER,
        (
            "_Process._carry_out",
            (
                "if effects.held is not None:\n"
                "    await self._store.save(effects.held)\n"
                "for target, message in effects.sends:\n"
                "    self._send(target, message)"
            ),
            (
                "for target, message in effects.sends:\n"
                "    self._send(target, message)\n"
                "if effects.held is not None:\n"
                "    await self._store.save(effects.held)"
            ),
        ),
        "a replica that crashes between the two steps has answered and then loses the change",
    ),
    _bug(
        "forget-after-crash",
        REGISTER,
        ("open_register_store", "held = last_record(_content(disk)) or RegisterState()", "held = RegisterState()"),
        "a restarted replica votes for a state without acknowledged changes",
    ),
    _bug(
        "folder-not-synced",
        REGISTER,
        ("rewrite", "await disk.sync_folder(FOLDER)", ""),
        "after a power cut the journal is the one from before the rename",
    ),
    _bug(
        "journal-gone-on-with",
        REGISTER,
        (
            "open_register_store",
            "return RegisterStore(disk, await rewrite(disk, held), held)",
            (
                "return RegisterStore(disk, disk.open(JOURNAL) if disk.exists(JOURNAL) else await rewrite(disk, "
                "held), held)"
            ),
        ),
        "records after a torn one, or after a failed sync, are never read again",
    ),
    _bug(
        "torn-record-taken",
        REGISTER,
        (
            "last_record",
            "if len(body) < length or zlib.crc32(body) != checksum or not body:",
            "if len(body) < length or not body:",
        ),
        "half a record is taken for a state",
    ),
    _bug(
        "promise-not-kept",
        REGISTER,
        (
            "RegisterReplica._prepare",
            (
                "if epoch > self.held.promised:\n"
                "    self._hold(msgspec.structs.replace(self.held, promised=epoch))\n"
                "    self.role = BackupRole()\n"
                "self._put_off_election(now_ms)\n"
                "self._send(sender, EpochPromise(epoch, self.held))"
            ),
            (
                "if epoch > self.held.promised:\n"
                "    self.role = BackupRole()\n"
                "self._put_off_election(now_ms)\n"
                "self._send(sender, EpochPromise(epoch, self.held))"
            ),
        ),
        "two primaries at once: the old one still gets its changes stored",
    ),
    _bug(
        "two-primaries",
        REGISTER,
        ("RegisterReplica._campaign", "self._send(peer, PrepareEpoch(epoch))", "self._lead(epoch, self.held)"),
        "a partitioned replica leads by itself",
    ),
    _bug(
        "old-primary-obeyed",
        REGISTER,
        (
            "RegisterReplica._follow",
            (
                "if epoch < self.held.promised:\n"
                "    self._send(sender, EpochOutdated(self.held.promised))\n"
                "    return False\n"
                "if epoch > self.held.promised:\n"
                "    self._hold(msgspec.structs.replace(self.held, promised=epoch))\n"
                "self._newest_epoch"
            ),
            (
                "if epoch > self.held.promised:\n"
                "    self._hold(msgspec.structs.replace(self.held, promised=epoch))\n"
                "self._newest_epoch"
            ),
        ),
        "a replaced primary keeps confirming reads of its old state",
    ),
    _bug(
        "stale-read",
        REGISTER,
        (
            "RegisterReplica._read",
            "self._wait(primary, ask, self.held.value, primary.round)",
            "self._send(ask.client, RegisterAnswer(ask.client, ask.number, self.held.value))",
        ),
        "a replaced primary answers reads with old data",
    ),
    _bug(
        "read-of-unstored",
        REGISTER,
        (
            "RegisterReplica._answer_waiting",
            "if waiting.sequence <= stored and waiting.round <= confirmed:",
            "if (waiting.round or waiting.sequence <= stored) and waiting.round <= confirmed:",
        ),
        "a read shows a change that is lost afterwards",
    ),
    _bug(
        "answer-from-minority",
        REGISTER,
        (
            "RegisterReplica._reached",
            "return sorted(numbers, reverse=True)[self._majority - 1]",
            "return sorted(numbers, reverse=True)[0]",
        ),
        "an acknowledged change is on one replica only",
    ),
    _bug(
        "oldest-state-taken-over",
        REGISTER,
        ("RegisterReplica._newest", "return max(promises, key=lambda held: held.age)", "return promises[0]"),
        "a new primary starts from its own state, without changes it missed",
    ),
    _bug(
        "duplicate-apply",
        REGISTER,
        ("RegisterReplica._change", "if before is not None and ask.number <= before.number:", "if False:"),
        "a repeated request is counted twice",
    ),
    _bug(
        "retries-forgotten-by-backups",
        REGISTER,
        (
            "RegisterReplica._store",
            "self._hold(msgspec.structs.replace(held, promised=epoch))\n# A frame",
            "self._hold(msgspec.structs.replace(held, promised=epoch, answers=self.held.answers))\n# A frame",
        ),
        "a request repeated at the next primary is counted twice",
    ),
    _bug(
        "lost-retry",
        REGISTER,
        (
            "RegisterReplica._change",
            "if ask.number == before.number:\n    self._wait(primary, ask, before.result, 0)\nreturn",
            "return",
        ),
        "a client whose answer was lost waits for ever",
    ),
    _bug(
        "retry-answered-too-early",
        REGISTER,
        (
            "RegisterReplica._change",
            "self._wait(primary, ask, before.result, 0)",
            "self._send(ask.client, RegisterAnswer(ask.client, ask.number, before.result))",
        ),
        "a repeated request is answered from a change that no majority has",
    ),
    _bug(
        "late-state-acknowledged",
        REGISTER,
        (
            "RegisterReplica._store",
            "self._send(sender, StateStored(epoch, self.held.sequence))",
            "self._send(sender, StateStored(epoch, self.held.sequence + 1))",
        ),
        "a change counts as stored where it is not",
    ),
    Mutation(
        name="register-sequence-without-epoch",
        module=REGISTER,
        function="RegisterReplica._newest",
        find="return max(promises, key=lambda held: held.age)",
        replace="return max(promises, key=lambda held: held.sequence)",
        check=PytestCheck("tests/unit/sim/test_register_replica.py"),  # some 190 seeds need a minute to find it
        why="many unacknowledged changes win over the correct state",
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

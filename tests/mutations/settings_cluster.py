"""Bugs of settings that only show with several nodes: replication, purge rounds, resets."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

SETTINGS = SimSeeds("settings", "1-30")
ROUNDS = PytestCheck("tests/sim/test_settings_rounds.py")
STORE = PytestCheck("tests/unit/settings_store/test_node_store.py")

MUTATIONS = (
    Mutation(
        name="settings-prepare-answered-before-durable",
        module="ebla.control.settings.purge_agent",
        function="PurgeAgent.prepare",
        find="await self._durable.run(lambda store: store.prepare(request.purged_us))\nawait self._replication.drain()",
        replace="asyncio.get_running_loop().create_task("
        "self._durable.run(lambda store: store.prepare(request.purged_us)))",
        check=SETTINGS,
        why="after a crash the node dates a deletion before the purge, and the value returns",
    ),
    Mutation(
        name="settings-push-acknowledged-before-durable",
        module="ebla.control.settings.purge_agent",
        function="PurgeAgent.push",
        find="""decision = await self._durable.run(
            lambda store: store.receive_tombstones(tombstones, request.purged_us, wall_us, is_last=request.is_last)
        )""",
        replace="""asyncio.get_running_loop().create_task(self._durable.run(
            lambda store: store.receive_tombstones(tombstones, request.purged_us, wall_us, is_last=request.is_last)
        ))
return EmptyAnswer()""",
        check=SETTINGS,
        why="a crash brings back a value whose tombstone the others have erased",
    ),
    Mutation(
        name="settings-erased-before-effective-is-durable",
        module="ebla.settings_store.node_store",
        function="SettingsStore.learn",
        find="return Decision(update=Update(header=header, erased=erased))",
        replace="return Decision(update=Update(header=self.header if erased else header, erased=erased))",
        check=SETTINGS,
        why="a restarted node gives a key that is created again an old purge timestamp",
    ),
    Mutation(
        name="settings-push-skipped",
        module="ebla.control.settings.purger",
        function="Purger._push",
        find="_parts(tombstones)",
        replace="_parts([])",
        check=SETTINGS,
        why="a node that never saw the deletion keeps the value and gives it back to all",
    ),
    Mutation(
        name="settings-leader-pushes-its-own-entries",
        module="ebla.control.settings.purger",
        function="Purger._prepare",
        find="return collected.sorted_entries()",
        replace="return [(key, self._durable.store.entries.get(key, one)) for key, one in collected.sorted_entries()]",
        check=SETTINGS,
        why="a tombstone that loses on the leader is erased elsewhere before every node has seen it",
    ),
    Mutation(
        name="settings-learners-left-out",
        module="ebla.control.settings.purger",
        function="Purger._prepare",
        find="await self._at_each(members, prepare, PREPARE_MS, PurgeResult.PREPARE_FAILED)",
        replace="voters = [one for one in members if one.role == 'voter']\n"
        "await self._at_each(voters, prepare, PREPARE_MS, PurgeResult.PREPARE_FAILED)",
        check=SETTINGS,
        why="a tombstone that only a learner has is erased there, and the value stays elsewhere",
    ),
    Mutation(
        name="settings-membership-not-checked-at-apply",
        module="ebla.control.settings.purger",
        function="Purger._commit_effective",
        find="stored.changed_to(state, MembersUnchanged(members_revision))",
        replace="stored.changed_to(state)",
        check=ROUNDS,
        why="a purge takes effect without a node that joined meanwhile",
    ),
    Mutation(
        name="settings-sender-not-checked",
        module="ebla.control.settings.replication",
        function="SettingsReplication._decide",
        find="self._cluster.check_sender(received.header)",
        replace="pass",
        check=SETTINGS,
        why="a removed host brings back what was purged",
    ),
    Mutation(
        name="settings-host-id-as-actor",
        module="ebla.control.settings.reset",
        function="SettingsReset._reset",
        find="actor = self._rng.uuid()",
        replace="actor = self._cluster.host",
        check=SETTINGS,
        why="a node that lost its folder uses its counters again, and its changes are taken for old ones",
    ),
    Mutation(
        name="settings-reset-leaves-the-purger",
        module="ebla.control.settings.reset",
        function="SettingsReset._end_round",
        find="if not stored.is_unfinished or stored.state.purger is None:",
        replace="if stored.revision or True:",
        check=ROUNDS,
        why="a round counts the acknowledgement of a folder that is gone",
    ),
    Mutation(
        name="settings-reset-forgotten-after-a-crash",
        module="ebla.settings_store.node_store",
        function="SettingsStore.begin_reset",
        find="in_reset=True,",
        replace="in_reset=False,",
        check=STORE,
        why="a node goes on with an older copy as if it had everything",
    ),
    Mutation(
        name="settings-pull-answered-in-reset",
        module="ebla.control.settings.replication",
        function="SettingsReplication._answer_pull",
        find="if self._reset.in_progress:",
        replace="if not self._reset:",
        check=SETTINGS,
        why="another node takes an incomplete copy for a complete one",
    ),
    Mutation(
        name="settings-push-taken-unprepared",
        module="ebla.control.settings.purge_agent",
        function="PurgeAgent.push",
        find="self._collected_for(request.attempt)",
        replace="",
        check=ROUNDS,
        why="a node with an older folder erases a deletion that no other node has seen",
    ),
    Mutation(
        name="settings-late-prepare-taken",
        module="ebla.control.settings.purge_agent",
        function="PurgeAgent._check_attempt",
        find="if stored.revision != attempt or stored.state.tentative_wall_us != purged_us:",
        replace="if not stored:",
        check=ROUNDS,
        why="a node takes part in a round that another purger has replaced",
    ),
)

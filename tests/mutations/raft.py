"""Bugs of the Raft core. Most lose or fork acknowledged writes; each has a check that needs no recorded transcript."""

from tests.mutations.framework import Mutation, PytestCheck


def _transcript(name: str) -> PytestCheck:
    return PytestCheck(f"tests/scenarios/test_raft_transcripts.py::test_transcript[{name}]")


QUORUM = PytestCheck("tests/properties/test_raft_quorum.py")
BACK_OFF = PytestCheck("tests/properties/test_raft_back_off.py")
CORE = PytestCheck("tests/unit/raft/test_core.py")
LOG = PytestCheck("tests/unit/raft/test_log.py")
HARSH = PytestCheck("tests/properties/test_raft_group.py::test_harsh_elections")
MIXED = PytestCheck("tests/properties/test_raft_group.py::test_mixed")

MUTATIONS = (
    Mutation(
        name="raft-commit-older-term-by-counting",
        module="ebla.raft.leader",
        function="try_commit",
        find="if index <= state.log.committed or state.log.term_at(index) != state.term:",
        replace="if index <= state.log.committed:",
        check=_transcript("figure_8"),
        why="an acknowledged write is replaced by the next leader",
    ),
    Mutation(
        name="raft-commit-at-a-minority",
        module="ebla.raft.quorum",
        function="majority_index",
        find="return indexes[len(indexes) - majority(voters)]",
        replace="return indexes[min(len(indexes) - majority(voters) + 1, len(indexes) - 1)]",
        check=QUORUM,
        why="an acknowledged write is lost with one node",
    ),
    Mutation(
        name="raft-joint-commit-counted-as-single",
        module="ebla.raft.quorum",
        function="joint_index",
        find="if membership.outgoing:\n    return min(index,",
        replace="if len(membership.outgoing) > 99:\n    return min(index,",
        check=_transcript("joint_quorum"),
        why="two majorities that do not overlap decide differently during a membership change",
    ),
    Mutation(
        name="raft-joint-vote-counted-as-single",
        module="ebla.raft.quorum",
        function="joint_vote",
        find="if incoming is outgoing:\n    return incoming",
        replace="if incoming is outgoing or incoming is VoteResult.WON:\n    return incoming",
        check=_transcript("joint_quorum"),
        why="two leaders in one term during a membership change",
    ),
    Mutation(
        name="raft-learner-counted-as-voter",
        module="ebla.raft.leader",
        function="try_commit",
        find="index = joint_index(state.membership, acknowledged)",
        replace="index = sorted(acknowledged.values())[(len(acknowledged) - 1) // 2]",
        check=_transcript("learner_does_not_count"),
        why="a write counts as safe although only learners hold it",
    ),
    Mutation(
        name="raft-vote-answered-before-write",
        module="ebla.raft.state",
        function="RaftState.respond_when_durable",
        find="self.after_write.append(answer)",
        replace=(
            "early = isinstance(answer, VoteResponse) and answer.to != self.peer\n"
            "(self.messages if early else self.after_write).append(answer)"
        ),
        check=_transcript("vote_survives_crash"),
        why="a peer votes twice in a term around a crash, and two leaders are elected",
    ),
    Mutation(
        name="raft-append-answered-before-write",
        module="ebla.raft.state",
        function="RaftState.respond_when_durable",
        find="self.after_write.append(answer)",
        replace=(
            "early = isinstance(answer, AppendResponse) and answer.to != self.peer\n"
            "(self.messages if early else self.after_write).append(answer)"
        ),
        check=MIXED,
        why="a power cut loses an acknowledged write",
    ),
    Mutation(
        name="raft-leader-counts-itself-before-write",
        module="ebla.raft.leader",
        function="append_as_leader",
        find="state.log.append(entries)",
        replace="state.log.append(entries)\nleader.progress[state.peer].match = entries[-1].index",
        check=_transcript("append_answered_after_write"),
        why="a power cut at the leader loses an acknowledged write",
    ),
    Mutation(
        name="raft-office-before-own-vote-is-durable",
        module="ebla.raft.elections",
        function="on_vote_response",
        find="if state.peer in role.votes:\n    _become_leader(state)",
        replace="_become_leader(state)",
        check=_transcript("own_vote_first"),
        why="a leader that crashes at once leads the same term twice, with two logs",
    ),
    Mutation(
        name="raft-second-vote-in-a-term",
        module="ebla.raft.elections",
        function="on_vote_request",
        find="is_free = state.vote == request.sender or (state.vote == NO_PEER and state.role.leader == NO_PEER)",
        replace="is_free = state.role.leader == NO_PEER",
        check=HARSH,
        why="two leaders in one term",
    ),
    Mutation(
        name="raft-vote-without-log-check",
        module="ebla.raft.elections",
        function="on_vote_request",
        find=(
            "granted = is_free and state.log.is_up_to_date(request.last_index, request.last_term)\n"
            "state.respond_when_durable(VoteResponse("
        ),
        replace="granted = is_free\nstate.respond_when_durable(VoteResponse(",
        check=HARSH,
        why="a leader without the committed entries overwrites them everywhere",
    ),
    Mutation(
        name="raft-vote-does-not-need-sync",
        module="ebla.raft.core",
        function="RaftCore._take_write",
        find="must_sync = bool(entries) or given.term != state.term or given.vote != state.vote",
        replace="must_sync = bool(entries)",
        check=_transcript("vote_survives_crash"),
        why="a power cut loses a vote that was already sent",
    ),
    Mutation(
        name="raft-pre-vote-disturbs",
        module="ebla.raft.elections",
        function="enter_newer_term",
        find="return not trusts_leader(state)",
        replace="state.become_follower(term, NO_PEER)",
        check=_transcript("pre_vote_does_not_disturb"),
        why="a partitioned node deposes a healthy leader when it comes back",
    ),
    Mutation(
        name="raft-read-without-quorum-round",
        module="ebla.raft.leader",
        function="_confirm_read",
        find="if state.options.read_mode is ReadIndexMode.LEASE:\n    _answer_read(",
        replace="if state.options.read_mode in ReadIndexMode:\n    _answer_read(",
        check=_transcript("read_index_deposed"),
        why="a leader that was replaced serves old data as linearizable",
    ),
    Mutation(
        name="raft-read-before-own-commit",
        module="ebla.raft.leader",
        function="_take_read",
        find="if state.log.term_at(state.log.committed) != state.term:",
        replace="if state.log.committed == 0:",
        check=_transcript("read_index"),
        why="a new leader answers a read with an outdated commit index",
    ),
    Mutation(
        name="raft-delayed-append-truncates",
        module="ebla.raft.log",
        function="Log.try_append",
        find="known = min(last, self.last_index) - prev_index",
        replace="known = 0",
        check=BACK_OFF,
        why="a late message truncates entries that were acknowledged after it",
    ),
    Mutation(
        name="raft-conflict-is-kept",
        module="ebla.raft.log",
        function="Log.try_append",
        find=(
            "if self._entries[start + position].term != entries[position].term:\n"
            "    self.append(entries[position:])\n"
            "    return last"
        ),
        replace="pass",
        check=BACK_OFF,
        why="a follower keeps entries that were never committed and serves them",
    ),
    Mutation(
        name="raft-follower-commits-own-suffix",
        module="ebla.raft.follower",
        function="on_append",
        find="log.commit_to(min(append.commit, last))",
        replace="log.commit_to(min(append.commit, log.last_index))",
        check=CORE,
        why="a follower applies entries that were never committed",
    ),
    Mutation(
        name="raft-heartbeat-commit-not-cut",
        module="ebla.raft.leader",
        function="broadcast_heartbeat",
        find="commit = min(progress.match, state.log.committed)",
        replace="commit = state.log.committed",
        check=HARSH,
        why="a follower applies its own entries under the leader's commit index",
    ),
    Mutation(
        name="raft-replaced-write-counts-as-stable",
        module="ebla.raft.log",
        function="Log.stable_to",
        find="if index <= self.stable or not self.matches(index, term):\n    return",
        replace="if index <= self.stable:\n    return\nindex = min(index, self.last_index)",
        check=LOG,
        why="entries are applied that a power cut could still remove",
    ),
    Mutation(
        name="raft-write-of-an-older-term-counts",
        module="ebla.raft.completions",
        function="on_written",
        find="if event.last_index and event.term == state.term:",
        replace="if event.last_index:",
        check=_transcript("aba_write"),
        why="entries are taken for durable while an older write may still replace them",
    ),
    Mutation(
        name="raft-snapshot-off-by-one",
        module="ebla.raft.progress",
        function="PeerProgress.become_snapshot",
        find="self.pending_snapshot = index\nself.next_index = index + 1",
        replace="self.pending_snapshot = index + 1\nself.next_index = index + 2",
        check=_transcript("compaction"),
        why="a node restored from a snapshot waits for an entry that is never sent",
    ),
    Mutation(
        name="raft-compaction-off-by-one",
        module="ebla.raft.log",
        function="Log.compact",
        find="self.base_term = self._entries[count - 1].term",
        replace="self.base_term = self._entries[max(count - 2, 0)].term",
        check=LOG,
        why="a follower refuses entries that follow a compacted one, or accepts entries that do not",
    ),
    Mutation(
        name="raft-two-changes-at-once",
        module="ebla.raft.leader",
        function="_may_change_now",
        find="if pending_change_index > state.log.applied:",
        replace="if pending_change_index > state.log.last_index:",
        check=_transcript("one_change_at_a_time"),
        why="two membership changes in flight split the group",
    ),
    Mutation(
        name="raft-new-leader-forgets-pending-change",
        module="ebla.raft.state",
        function="RaftState.become_leader",
        find="pending_change_index=last)",
        replace="pending_change_index=0)",
        check=_transcript("one_change_at_a_time"),
        why="a second membership change is accepted while the former leader's is in flight",
    ),
    Mutation(
        name="raft-campaign-over-unapplied-change",
        module="ebla.raft.elections",
        function="start_election",
        find="if state.log.has_membership_change(state.log.applied + 1, state.log.committed):",
        replace="if state.log.has_membership_change(state.log.committed + 1, state.log.committed):",
        check=_transcript("unapplied_change_bars_campaign"),
        why="a removed node becomes leader with the old membership",
    ),
    Mutation(
        name="raft-membership-applied-twice",
        module="ebla.raft.completions",
        function="on_apply_membership",
        find="if event.index <= state.membership_index:",
        replace="if event.index < 0:",
        check=CORE,
        why="after a snapshot, a node counts majorities of a membership that never existed",
    ),
    Mutation(
        name="raft-removed-leader-stays",
        module="ebla.raft.completions",
        function="on_apply_membership",
        find="if state.options.step_down_on_removal:",
        replace="if not state.options.step_down_on_removal:",
        check=_transcript("step_down_on_removal"),
        why="a removed leader blocks all writes for ever",
    ),
    Mutation(
        name="raft-quorum-never-checked",
        module="ebla.raft.leader",
        function="check_quorum",
        find="progress.recently_active = False",
        replace="progress.recently_active = True",
        check=_transcript("learner_does_not_count"),
        why="a partitioned leader keeps its clients waiting instead of stepping down",
    ),
    Mutation(
        name="raft-window-never-reopened",
        module="ebla.raft.leader",
        function="on_heartbeat_response",
        find="progress.is_paused = progress.mode is ReplicationMode.SNAPSHOT\n# The peer lives",
        replace="# The peer lives",
        check=_transcript("compaction"),
        why="after lost messages a follower never catches up",
    ),
    Mutation(
        name="raft-transfer-refused-by-trust",
        module="ebla.raft.elections",
        function="enter_newer_term",
        find="if trusts_leader(state) and not message.transfer:",
        replace="if trusts_leader(state):",
        check=_transcript("leader_transfer"),
        why="a leadership transfer never succeeds",
    ),
    Mutation(
        name="raft-removed-peer-never-told",
        module="ebla.raft.leader",
        function="_step_forward",
        find="or committed < leader.pending_change_index <= state.log.committed:",
        replace=":",
        check=PytestCheck("tests/unit/control/raft/test_driver.py"),
        why="a removed node never sees the entry that removed it, and its callers get no answer",
    ),
)

"""The commands of quorum and membership transcripts."""

from collections.abc import Callable

from tests.scenarios.raft_harness.describe import (
    CHANGE_KINDS,
    RULE_NAMES,
    VOTE_NAMES,
    describe_membership,
    describe_progress,
)
from tests.scenarios.raft_harness.transcript import Command

from ebla.raft.membership import MemberChange, MembershipRefused, change_one_voter, enter_joint, leave_joint
from ebla.raft.messages import MAX_INDEX, Membership, PeerId
from ebla.raft.options import RaftOptions
from ebla.raft.progress import PeerProgress, reconcile_progress
from ebla.raft.quorum import joint_index, joint_vote

QUORUM_COMMANDS = ("committed", "vote")
OPTIONS = RaftOptions(peer=PeerId(1))
MEMBERSHIP_COMMANDS = ("simple", "enter-joint", "leave-joint")


def run_quorum(command: Command) -> str:
    voters = _ids(command, "cfg")
    outgoing = () if command.option("cfgj", "zero") == "zero" else _ids(command, "cfgj")
    membership = Membership(voters=tuple(sorted(voters)), outgoing=tuple(sorted(outgoing)))
    order = [*voters, *(peer for peer in outgoing if peer not in voters)]
    if command.name == "vote":
        answers = dict(zip(order, command.options.get("votes", ())))
        votes = {peer: answer == "y" for peer, answer in answers.items() if answer != "_"}
        return VOTE_NAMES[joint_vote(membership, votes)] + "\n"
    given = dict(zip(order, command.options.get("idx", ())))
    indexes = {peer: int(index) for peer, index in given.items() if index != "_"}
    committed = joint_index(membership, indexes)
    return _table(sorted(order), indexes) + ("∞" if committed == MAX_INDEX else str(committed)) + "\n"


def _ids(command: Command, name: str) -> tuple[PeerId, ...]:
    return tuple(PeerId(int(number)) for number in command.options.get(name, ()))


def _table(peers: list[PeerId], indexes: dict[PeerId, int]) -> str:
    """Each voter with a bar as long as its rank."""
    if not peers:
        return "<empty majority quorum>"
    ranked = sorted(indexes.get(peer, 0) for peer in peers)
    width = len(peers)
    text = " " * width + "    idx\n"
    for peer in peers:
        index = indexes.get(peer, 0)
        rank = ranked.index(index)
        bar = "?" + " " * width if peer not in indexes else "x" * rank + ">" + " " * (width - rank)
        text += f"{bar} {index:5d}    (id={peer})\n"
    return text


class MembershipTable:
    """A membership and the progress of its members, changed command by command."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.progress: dict[PeerId, PeerProgress] = {}
        self._last_index = 0

    def run(self, command: Command) -> str:
        words = " ".join(command.body).split()
        changes = [MemberChange(CHANGE_KINDS[word[0]], PeerId(int(word[1:]))) for word in words]
        run: dict[str, Callable[[], Membership]] = {
            "simple": lambda: change_one_voter(self.membership, changes),
            "enter-joint": lambda: enter_joint(self.membership, changes, auto_leave=command.flag("autoleave")),
            "leave-joint": lambda: leave_joint(self.membership),
        }
        last_index, self._last_index = self._last_index, self._last_index + 1
        try:
            self.membership = run[command.name]()
        except MembershipRefused as refused:
            return RULE_NAMES[refused.rule] + "\n"
        self.progress = reconcile_progress(self.progress, self.membership, OPTIONS, last_index)
        lines = [f"{peer}: {describe_progress(progress)}" for peer, progress in self.progress.items()]
        return "\n".join([describe_membership(self.membership), *lines]) + "\n"

"""Leases, their renewal and activities: each transcript is a story on virtual time."""

from pathlib import Path

import pytest
from tests.scenarios.leadership_harness import COMMANDS, LeadershipNode
from tests.scenarios.raft_harness.transcript import replay

from ebla.leadership.activities import ENDS, EndReason, Precondition
from ebla.leadership.lease_agent import RULES
from ebla.leadership.lease_worker import FailedCall
from ebla.leadership.messages import LeaseReply

_FILES = sorted((Path(__file__).parent / "leadership").glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    replay(path, COMMANDS, LeadershipNode().run)


def test_the_transcripts_reach_every_row_of_the_decision_table() -> None:
    reached = set()
    for path in _FILES:
        node = LeadershipNode()
        replay(path, COMMANDS, node.run)
        reached |= set(node.rules)
    assert reached == {rule.number for rule in RULES}


def test_the_transcripts_show_every_answer_failure_precondition_and_end() -> None:
    shown = "".join(path.read_text() for path in _FILES)
    ends = (EndReason.LEADER_PROCESS_DIED, *(reason for reason, _ in ENDS))
    assert [word for word in (*LeaseReply, *FailedCall, *Precondition, *ends) if word not in shown] == []

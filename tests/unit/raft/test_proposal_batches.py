from ebla.raft.events import Propose
from ebla.raft.messages import EntryKind
from ebla.raft.proposal_batches import batch_proposals

COMMAND, MEMBER = EntryKind.COMMAND, EntryKind.MEMBER


def test_neighbours_go_together_up_to_the_size_of_a_message_and_a_change_stands_alone() -> None:
    commands = [(bytes([number]) * 40, COMMAND) for number in range(6)]
    proposals = [*commands[:4], (b"a change", MEMBER), commands[4], (b"x" * 300, COMMAND), commands[5]]
    assert list(batch_proposals(proposals, 100)) == [
        Propose((commands[0][0], commands[1][0]), COMMAND),
        Propose((commands[2][0], commands[3][0]), COMMAND),
        Propose((b"a change",), MEMBER),
        Propose((commands[4][0],), COMMAND),
        Propose((b"x" * 300,), COMMAND),
        Propose((commands[5][0],), COMMAND),
    ]


def test_of_nothing_comes_nothing() -> None:
    assert list(batch_proposals([], 100)) == []
    assert list(batch_proposals([(b"a change", MEMBER)], 100)) == [Propose((b"a change",), MEMBER)]

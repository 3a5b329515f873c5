"""Messages survive the wire, and a field that is missing takes its default."""

import msgspec
import pytest

from ebla.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    LeaderTransferRequest,
    Membership,
    Message,
    PeerId,
    PreVoteRequest,
    PreVoteResponse,
    Proposal,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

A, B = PeerId(1), PeerId(2)
SNAPSHOT = SnapshotMeta(7, 2, Membership((A, B), (A,), (PeerId(3),), (), auto_leave=True))

EXAMPLES: list[Message] = [
    VoteRequest(A, B, 3, 9, 2, transfer=True),
    VoteResponse(A, B, 3, granted=True),
    PreVoteRequest(A, B, 3, 9, 2),
    PreVoteResponse(A, B, 3, granted=False),
    Append(A, B, 3, 9, 2, 8, (Entry(10, 3, b"x"), Entry(11, 3, b"", EntryKind.MEMBERS))),
    AppendResponse(A, B, 3, 9, rejected=True, hint_index=4, hint_term=1),
    Heartbeat(A, B, 3, 8, b"r"),
    HeartbeatResponse(A, B, 3, b"r"),
    InstallSnapshot(A, B, 3, SNAPSHOT),
    TimeoutNow(A, B, 3),
    LeaderTransferRequest(A, B, 3, PeerId(3)),
    Proposal(A, B, EntryKind.COMMAND, (b"x", b"y")),
    ReadIndexRequest(A, B, b"r"),
    ReadIndexResponse(A, B, 3, 9, b"r"),
]


def test_every_message_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(Message.__args__)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_there_and_back(message: Message) -> None:
    data = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(data, type=Message) == message


def test_an_older_peer_sends_fewer_fields() -> None:
    data = msgspec.msgpack.encode([7, 1, 2, 3])
    assert msgspec.msgpack.decode(data, type=Message) == Heartbeat(A, B, 3)


def test_members_of_a_joint_membership() -> None:
    membership = SNAPSHOT.membership
    assert membership.all_voters() == (1, 2)
    assert membership.all_members() == (1, 2, 3)
    assert membership.is_learner(PeerId(3))
    assert not membership.is_voter(PeerId(3))
    assert not membership.is_member(PeerId(4))

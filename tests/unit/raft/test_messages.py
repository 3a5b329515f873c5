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
SNAPSHOT = SnapshotMeta(
    7, 2, Membership(voters=(A, B), outgoing=(A,), learners=(PeerId(3),), learners_next=(), auto_leave=True)
)

EXAMPLES: list[Message] = [
    VoteRequest(sender=A, to=B, term=3, last_index=9, last_term=2, transfer=True),
    VoteResponse(sender=A, to=B, term=3, granted=True),
    PreVoteRequest(sender=A, to=B, term=3, last_index=9, last_term=2),
    PreVoteResponse(sender=A, to=B, term=3, granted=False),
    Append(
        sender=A,
        to=B,
        term=3,
        prev_index=9,
        prev_term=2,
        commit=8,
        entries=(Entry(index=10, term=3, data=b"x"), Entry(index=11, term=3, data=b"", kind=EntryKind.MEMBERS)),
    ),
    AppendResponse(sender=A, to=B, term=3, index=9, rejected=True, hint_index=4, hint_term=1),
    Heartbeat(sender=A, to=B, term=3, commit=8, read_context=b"r"),
    HeartbeatResponse(sender=A, to=B, term=3, read_context=b"r"),
    InstallSnapshot(sender=A, to=B, term=3, snapshot=SNAPSHOT),
    TimeoutNow(sender=A, to=B, term=3),
    LeaderTransferRequest(sender=A, to=B, term=3, target=PeerId(3)),
    Proposal(sender=A, to=B, kind=EntryKind.COMMAND, payloads=(b"x", b"y")),
    ReadIndexRequest(sender=A, to=B, read_context=b"r"),
    ReadIndexResponse(sender=A, to=B, term=3, index=9, read_context=b"r"),
]


def test_every_message_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(Message.__args__)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_there_and_back(message: Message) -> None:
    data = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(data, type=Message) == message


def test_an_older_peer_sends_fewer_fields() -> None:
    data = msgspec.msgpack.encode([7, 1, 2, 3])
    assert msgspec.msgpack.decode(data, type=Message) == Heartbeat(sender=A, to=B, term=3)


def test_members_of_a_joint_membership() -> None:
    membership = SNAPSHOT.membership
    assert membership.all_voters() == (1, 2)
    assert membership.all_members() == (1, 2, 3)
    assert membership.is_learner(PeerId(3))
    assert not membership.is_voter(PeerId(3))
    assert not membership.is_member(PeerId(4))

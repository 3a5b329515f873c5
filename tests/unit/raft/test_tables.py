"""The tables per role are total, and nothing in them is out of reach."""

import pytest
from tests.scenarios.raft_harness.node import LongestTimeout

from ebla.raft import messages
from ebla.raft.core import RaftCore
from ebla.raft.events import LocalEvent, Tick
from ebla.raft.messages import Membership, Message, PeerId, SnapshotMeta
from ebla.raft.options import RaftOptions
from ebla.raft.roles import Role
from ebla.raft.state import RecoveredState
from ebla.raft.tables import TABLES, TICKS

_ROLES = Role.__args__
_EVENTS = [kind for kind in (*LocalEvent.__subclasses__(), *Message.__args__) if kind is not Tick]


@pytest.mark.parametrize("role", _ROLES)
def test_every_role_has_a_row_for_every_event(role: type) -> None:
    assert set(TABLES[role]) == set(_EVENTS)
    assert role in TICKS


def test_no_table_without_a_role() -> None:
    assert set(TABLES) == set(_ROLES) == set(TICKS)


def test_every_message_struct_is_a_message() -> None:
    structs = {
        found
        for found in vars(messages).values()
        if isinstance(found, type) and "sender" in getattr(found, "__struct_fields__", ())
    }
    assert structs - {messages.PeerMessage, messages.TermMessage} == set(Message.__args__)


def test_message_tags_are_distinct() -> None:
    tags = [kind.__struct_config__.tag for kind in Message.__args__]
    assert sorted(tags) == list(range(1, len(tags) + 1))


def test_a_message_for_another_peer_is_an_error() -> None:
    membership = Membership(voters=(PeerId(1), PeerId(2)))
    core = RaftCore(
        RaftOptions(peer=PeerId(1)), RecoveredState(snapshot=SnapshotMeta(1, 1, membership)), LongestTimeout(), 0
    )
    with pytest.raises(AssertionError, match="for another peer"):
        core.step(messages.Heartbeat(sender=PeerId(2), to=PeerId(3), term=1), 0)

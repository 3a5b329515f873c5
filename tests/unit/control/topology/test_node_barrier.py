"""What a barrier waits for on a node, condition by condition, in words."""

import uuid

import msgspec
import pytest

from ebla.control.topology.node_barrier import barrier_waits_for, takes_part
from ebla.model.identity import SessionId, TopologyVersion
from ebla.wire.feed_messages import ChildReport

V = TopologyVersion
SESSION = SessionId(uuid.UUID(int=5))
DONE = ChildReport(name="shard-0", pid=11, version=V(7), fence=V(6), oldest_running=V(7), pending_replicas_open=True)


def test_it_holds_once_every_process_has_the_version_and_nothing_older() -> None:
    bulk = msgspec.structs.replace(DONE, name="bulk", version=V(9), oldest_running=V(8))
    assert barrier_waits_for(V(7), ("bulk", "shard-0"), {"shard-0": DONE, "bulk": bulk}) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": V(6), "oldest_running": V(6)}, ("has version 6, not 7", "runs requests of version 6")),
        ({"oldest_running": V(5)}, ("runs requests of version 5",)),
        ({"pending_replicas_open": False}, ("has a pending replica that does not accept writes yet",)),
        ({"closing_sessions": (SESSION,)}, (f"holds guards of closed sessions: {SESSION}",)),
    ],
)
def test_each_condition_alone_holds_it_up(change: dict[str, object], words: tuple[str, ...]) -> None:
    report = msgspec.structs.replace(DONE, **change)
    assert barrier_waits_for(V(7), ("shard-0",), {"shard-0": report}) == tuple(f"shard-0 {word}" for word in words)


def test_whoever_has_not_reported_holds_it_up() -> None:
    waits = barrier_waits_for(V(7), ("bulk", "shard-0"), {"shard-0": DONE})
    assert waits == ("bulk has not reported since this control process started",)
    assert barrier_waits_for(V(7), ("bulk", "shard-0"), {"shard-0": DONE}, drain=False) == waits


def test_installed_is_less_than_drained() -> None:
    busy = msgspec.structs.replace(DONE, oldest_running=V(3), pending_replicas_open=False, closing_sessions=(SESSION,))
    assert barrier_waits_for(V(7), ("shard-0",), {"shard-0": busy}, drain=False) == ()
    assert barrier_waits_for(V(8), ("shard-0",), {"shard-0": busy}, drain=False) == ("shard-0 has version 7, not 8",)


def test_it_says_why_a_child_does_not_get_on() -> None:
    stuck = msgspec.structs.replace(DONE, trouble="no space left")
    assert barrier_waits_for(V(8), ("shard-0",), {"shard-0": stuck})[0] == "shard-0 has version 7, not 8: no space left"


def test_who_takes_part() -> None:
    assert [name for name in ("control", "shard-0", "shard-11", "bulk", "pipeline") if takes_part(name)] == [
        "shard-0",
        "shard-11",
        "bulk",
    ]

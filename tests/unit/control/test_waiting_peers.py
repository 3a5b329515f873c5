from ebla.control.waiting_peers import WAITS_MS, WaitingPeers
from ebla.raft.messages import PeerId

TWO, THREE = PeerId(2), PeerId(3)


def test_who_asked_waits_for_a_while() -> None:
    waiting = WaitingPeers()
    waiting.asked(TWO, 1_000)
    waiting.asked(THREE, 1_050)
    assert list(waiting.now(1_000 + WAITS_MS - 1)) == [TWO, THREE]
    assert list(waiting.now(1_000 + WAITS_MS)) == [THREE]
    assert waiting.is_waiting(THREE, 1_000 + WAITS_MS)
    assert not waiting.is_waiting(TWO, 1_000 + WAITS_MS)
    assert not waiting.is_waiting(PeerId(4), 0)

from ebla.raft.messages import PeerId
from ebla.raft.waiting_peers import WAITING_MS, WaitingPeers

TWO, THREE = PeerId(2), PeerId(3)


def test_who_asked_waits_for_a_while() -> None:
    waiting = WaitingPeers()
    waiting.asked(TWO, 1_000)
    waiting.asked(THREE, 1_050)
    assert list(waiting.now(1_000 + WAITING_MS - 1)) == [TWO, THREE]
    assert list(waiting.now(1_000 + WAITING_MS)) == [THREE]
    assert waiting.is_waiting(THREE, 1_000 + WAITING_MS)
    assert not waiting.is_waiting(TWO, 1_000 + WAITING_MS)
    assert not waiting.is_waiting(PeerId(4), 0)

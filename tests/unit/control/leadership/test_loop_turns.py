"""How long the event loop stood still."""

import asyncio

from ebla.control.leadership.loop_turns import BEAT_S, LoopTurns


async def test_the_pause_since_the_last_beat_counts_once() -> None:
    """Without beats the loop is as good as stalled; the caller may run before the beat that is late."""
    turns = LoopTurns()
    assert turns.take_longest_pause_ms() == 0
    beats = asyncio.create_task(turns.run())
    await asyncio.sleep(10 * BEAT_S)
    assert turns.take_longest_pause_ms() <= BEAT_S * 1000 + 1
    beats.cancel()
    await asyncio.sleep(1.2)
    assert turns.take_longest_pause_ms() >= 1_200
    assert turns.take_longest_pause_ms() == 0

"""One timer for many deadlines."""

import asyncio
import math

from ebla.aio.deadline_timer import DeadlineTimer


class Timers:
    """A loop whose time the test moves; it keeps what is armed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.armed: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, act: object) -> "Timer":
        timer = Timer(when, act)
        self.armed.append(timer)
        return timer

    def advance(self, to: float) -> None:
        self.now = to
        due = [timer for timer in self.armed if timer.when <= to and not timer.cancelled]
        self.armed = [timer for timer in self.armed if timer.when > to and not timer.cancelled]
        for timer in due:
            timer.act()  # type: ignore[operator]  # what was armed can be called

    def live(self) -> list[float]:
        return [timer.when for timer in self.armed if not timer.cancelled]


class Timer:
    def __init__(self, when: float, act: object) -> None:
        self.when = when
        self.act = act
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def make(waiting: list[float], passed: list[float]) -> tuple[Timers, DeadlineTimer]:
    timers = Timers()

    def expire(now: float) -> float:
        passed.extend(when for when in waiting if when <= now)
        waiting[:] = [when for when in waiting if when > now]
        return min(waiting, default=math.inf)

    loop: asyncio.AbstractEventLoop = timers  # type: ignore[assignment]  # the part of a loop that is used
    return timers, DeadlineTimer(loop, 5, expire)


def test_one_timer_stands_at_the_earliest() -> None:
    waiting, passed = [3.0, 1.0, 2.0, 5.0], list[float]()
    timers, deadlines = make(waiting, passed)
    for when in waiting:
        deadlines.note(when)
    assert timers.live() == [1.0]
    timers.advance(1.0)
    assert passed == [1.0]
    assert timers.live() == [2.0]
    timers.advance(4.0)
    assert passed == [1.0, 3.0, 2.0]
    assert timers.live() == [5.0]
    timers.advance(5.0)
    assert timers.live() == []
    assert deadlines.armed_at == math.inf


def test_answered_requests_cost_no_timer() -> None:
    waiting, passed = list[float](), list[float]()
    timers, deadlines = make(waiting, passed)
    for number in range(1000):
        deadlines.note(10.0 + number)
    assert len(timers.live()) == 1
    timers.advance(10.0)
    assert timers.live() == []
    assert passed == []


def test_close_deadlines_share_a_firing() -> None:
    waiting, passed = [1.0, 1.001, 1.002], list[float]()
    timers, deadlines = make(waiting, passed)
    for when in waiting:
        deadlines.note(when)
    timers.advance(1.0)
    assert timers.live() == [1.005]
    timers.advance(1.005)
    assert passed == [1.0, 1.001, 1.002]


def test_nothing_is_armed_after_the_close() -> None:
    timers, deadlines = make([1.0], [])
    deadlines.note(1.0)
    deadlines.close()
    deadlines.note(0.5)
    assert timers.live() == []

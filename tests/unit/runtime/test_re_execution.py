import threading

from ebla.runtime.re_execution import LoopWatchdog, is_one_too_many, recent_restarts


def test_the_sixth_restart_within_a_minute_is_one_too_many() -> None:
    restarts = recent_restarts("1000,2000,3000,4000,5000", 60_999)
    assert not is_one_too_many(restarts)
    assert is_one_too_many((*restarts, 60_999))


def test_a_restart_of_more_than_a_minute_ago_does_not_count() -> None:
    assert recent_restarts("1000,2000", 61_000) == (2000,)


def test_unreadable_times_and_those_before_a_reboot_count_as_none() -> None:
    assert recent_restarts("x,,-5,90000", 1_000) == ()


def test_the_watchdog_acts_on_a_loop_without_turns() -> None:
    acted = threading.Event()
    watchdog = LoopWatchdog(lambda: 7, lambda: 500, lambda _why: acted.set())
    watchdog.start()
    assert acted.wait(10.0)
    watchdog.stop()

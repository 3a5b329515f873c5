"""How long an attempt waits after failures of its address."""

from ebla.cql.authentication import ADDRESSES_MAX, DELAY_MAX_MS, FAILURES_FREE, WINDOW_MS, FailedLogins


def fail(failed: FailedLogins, address: str, count: int, now_ms: int = 0) -> None:
    for _ in range(count):
        failed.failed(address, now_ms)


def test_delays_double_up_to_the_limit_and_count_attempts_that_have_not_failed_yet() -> None:
    failed = FailedLogins()
    fail(failed, "a", FAILURES_FREE - 1)
    assert failed.take_delay_ms("a", 0) == 0
    fail(failed, "a", 1)
    assert [failed.take_delay_ms("a", 0) for _ in range(7)] == [1000, 2000, 4000, 8000, 16000, 30000, 30000]
    assert failed.take_delay_ms("b", 0) == 0


def test_an_address_is_free_again_after_a_window_without_failures() -> None:
    failed = FailedLogins()
    fail(failed, "a", FAILURES_FREE)
    assert failed.take_delay_ms("a", WINDOW_MS) > 0
    assert failed.take_delay_ms("a", WINDOW_MS + 1) == 0
    # Attempts that wait the longest come often enough to be counted together.
    now_ms = WINDOW_MS
    fail(failed, "a", FAILURES_FREE, now_ms)
    for _ in range(20):
        now_ms += failed.take_delay_ms("a", now_ms)
        fail(failed, "a", 1, now_ms)
    assert failed.take_delay_ms("a", now_ms) == DELAY_MAX_MS


def test_only_so_many_addresses_are_remembered() -> None:
    failed = FailedLogins()
    fail(failed, "first", FAILURES_FREE)
    fail(failed, "second", FAILURES_FREE)
    fail(failed, "first", 1)
    for number in range(ADDRESSES_MAX - 1):
        failed.failed(str(number), 0)
    assert failed.take_delay_ms("second", 0) == 0, "it failed longest ago"
    assert failed.take_delay_ms("first", 0) > 0

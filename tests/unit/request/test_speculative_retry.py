from tests.unit.topology.small_cluster import replica

from ebla.request.speculative_retry import SpeculativeRetry, SpeculativeRetryLimits

A, B = replica(1), replica(2)
LIMITS = SpeculativeRetryLimits(
    percentile=90, samples_max=20, samples_between=10, burst=2, share_percent=25, overdue_in_a_row=2, avoid_ms=100
)


def test_an_unknown_target_gets_the_longest_delay() -> None:
    assert SpeculativeRetry(LIMITS).delay_ms(A) == LIMITS.delay_max_ms


def test_the_delay_follows_the_times_of_the_target_itself() -> None:
    speculation = SpeculativeRetry(LIMITS)
    for took_ms in range(10, 20):
        speculation.answered(A, took_ms)
        speculation.answered(B, took_ms * 4)
    assert speculation.delay_ms(A) == 19
    assert speculation.delay_ms(B) == 76
    for _ in range(20):
        speculation.answered(A, 5)
    assert speculation.delay_ms(A) == 5


def test_the_delay_stays_within_its_bounds() -> None:
    speculation = SpeculativeRetry(LIMITS)
    for _ in range(10):
        speculation.answered(A, 0.01)
        speculation.answered(B, 90_000)
    assert speculation.delay_ms(A) == LIMITS.delay_min_ms
    assert speculation.delay_ms(B) == LIMITS.delay_max_ms


def test_only_a_share_is_repeated() -> None:
    speculation = SpeculativeRetry(LIMITS)
    assert [speculation.may_retry() for _ in range(3)] == [True, True, False]
    repeated = 0
    for _ in range(100):
        speculation.sent()
        repeated += speculation.may_retry()
    assert repeated == 25


def test_a_quiet_time_saves_up_no_more_than_a_burst() -> None:
    speculation = SpeculativeRetry(LIMITS)
    for _ in range(1000):
        speculation.sent()
    assert [speculation.may_retry() for _ in range(3)] == [True, True, False]


def test_one_that_lets_several_wait_is_passed_over_for_a_while() -> None:
    speculation = SpeculativeRetry(LIMITS)
    speculation.overdue(A, 1000)
    assert not speculation.is_avoided(A, 1000)
    speculation.overdue(A, 1000)
    assert speculation.is_avoided(A, 1099)
    assert not speculation.is_avoided(B, 1099)
    assert not speculation.is_avoided(A, 1100)
    speculation.overdue(A, 1100)
    assert speculation.is_avoided(A, 1150), "it has still answered nothing: once more is enough"


def test_an_answer_makes_good_again() -> None:
    speculation = SpeculativeRetry(LIMITS)
    speculation.overdue(A, 1000)
    speculation.answered(A, 1)
    speculation.overdue(A, 1000)
    assert not speculation.is_avoided(A, 1000)
    speculation.overdue(A, 1000)
    assert speculation.is_avoided(A, 1000)
    speculation.answered(A, 1)
    assert not speculation.is_avoided(A, 1000)


def test_what_is_known_of_targets_is_bounded() -> None:
    speculation = SpeculativeRetry(SpeculativeRetryLimits(targets_max=2, overdue_in_a_row=1))
    for number in range(5):
        speculation.overdue(replica(number), 0)
    assert sum(speculation.is_avoided(replica(number), 1) for number in range(5)) <= 2

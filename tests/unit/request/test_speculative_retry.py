from tests.unit.topology.small_cluster import replica

from ebla.request.speculative_retry import (
    AVOID_MS,
    BURST,
    DELAY_MAX_MS,
    DELAY_MIN_MS,
    OVERDUE_IN_A_ROW,
    SAMPLES_BETWEEN,
    SAMPLES_MAX,
    SHARE_PERCENT,
    TARGETS_MAX,
    SpeculativeRetry,
)

A, B = replica(1), replica(2)


def test_an_unknown_target_gets_the_longest_delay() -> None:
    assert SpeculativeRetry().delay_ms(A) == DELAY_MAX_MS


def test_the_delay_follows_the_times_of_the_target_itself() -> None:
    speculation = SpeculativeRetry()
    for took_ms in range(SAMPLES_BETWEEN):
        speculation.answered(A, took_ms)
        speculation.answered(B, took_ms * 4)
    assert speculation.delay_ms(A) == SAMPLES_BETWEEN - 1
    assert speculation.delay_ms(B) == (SAMPLES_BETWEEN - 1) * 4
    for _ in range(SAMPLES_MAX):
        speculation.answered(A, 5)
    assert speculation.delay_ms(A) == 5


def test_one_slow_answer_among_very_many_does_not_count() -> None:
    speculation = SpeculativeRetry()
    for number in range(SAMPLES_MAX):
        speculation.answered(A, 90 if number == 0 else 10)
    assert speculation.delay_ms(A) == 10


def test_the_delay_stays_within_its_bounds() -> None:
    speculation = SpeculativeRetry()
    for _ in range(SAMPLES_BETWEEN):
        speculation.answered(A, 0.01)
        speculation.answered(B, 90_000)
    assert speculation.delay_ms(A) == DELAY_MIN_MS
    assert speculation.delay_ms(B) == DELAY_MAX_MS


def test_only_a_share_is_repeated() -> None:
    speculation = SpeculativeRetry()
    assert [speculation.may_retry() for _ in range(BURST + 1)] == [True] * BURST + [False]
    repeated = 0
    for _ in range(100):
        speculation.sent()
        repeated += speculation.may_retry()
    assert repeated == SHARE_PERCENT


def test_a_quiet_time_saves_up_no_more_than_a_burst() -> None:
    speculation = SpeculativeRetry()
    for _ in range(1000):
        speculation.sent()
    assert [speculation.may_retry() for _ in range(BURST + 1)] == [True] * BURST + [False]


def test_one_that_lets_several_wait_is_passed_over_for_a_while() -> None:
    speculation = SpeculativeRetry()
    for _ in range(OVERDUE_IN_A_ROW):
        assert not speculation.is_avoided(A, 1000)
        speculation.overdue(A, 1000)
    assert speculation.is_avoided(A, 999 + AVOID_MS)
    assert not speculation.is_avoided(B, 999 + AVOID_MS)
    assert not speculation.is_avoided(A, 1000 + AVOID_MS)
    speculation.overdue(A, 3000)
    assert speculation.is_avoided(A, 3001), "it has still answered nothing: once more is enough"


def test_an_answer_makes_good_again() -> None:
    speculation = SpeculativeRetry()
    speculation.overdue(A, 1000)
    speculation.answered(A, 1)
    for _ in range(OVERDUE_IN_A_ROW):
        assert not speculation.is_avoided(A, 1000)
        speculation.overdue(A, 1000)
    assert speculation.is_avoided(A, 1000)
    speculation.answered(A, 1)
    assert not speculation.is_avoided(A, 1000)


def test_what_is_known_of_targets_is_bounded() -> None:
    speculation = SpeculativeRetry()
    avoided = [replica(number) for number in range(TARGETS_MAX + 1)]
    for target in avoided:
        for _ in range(OVERDUE_IN_A_ROW):
            speculation.overdue(target, 0)
    assert [target for target in avoided if speculation.is_avoided(target, 1)] == avoided[-1:]

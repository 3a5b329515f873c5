"""When a shard may serve. Times are milliseconds."""

from ebla.replica.serving import ServingRight


def test_nothing_is_served_before_control_was_heard() -> None:
    right = ServingRight(5_000)
    assert not right.holds(0)
    assert right.silent_ms(0) is None


def test_the_right_ends_exactly_at_the_bound_and_returns_when_control_does() -> None:
    right = ServingRight(5_000)
    right.heard(1_000, allowed=True)
    assert right.holds(5_999)
    assert not right.holds(6_000)
    right.heard(9_000, allowed=True)
    assert right.holds(9_100)


def test_the_bound_runs_from_the_question_not_from_a_late_answer() -> None:
    right = ServingRight(5_000)
    right.heard(1_000, allowed=True)
    right.heard(500, allowed=False)
    assert right.holds(5_999)
    assert not right.holds(6_000)


def test_control_may_withhold_the_right() -> None:
    right = ServingRight(5_000)
    right.heard(1_000, allowed=True)
    right.heard(2_000, allowed=False)
    assert not right.holds(2_100)

"""Seeded random numbers: independent streams and the distributions of the draws."""

from ebla.sim.rng import SimRng


def test_streams_are_apart_and_repeatable() -> None:
    one, again = SimRng("s"), SimRng("s")
    fork = again.fork("disk")
    assert [one.random() for _ in range(3)] == [again.random() for _ in range(3)], "a fork draws nothing"
    assert fork.random() == SimRng("s").fork("disk").random() != SimRng("s").fork("net").random()
    assert SimRng("s").uuid() == SimRng("s").uuid()
    assert SimRng("s").uuid().version == 4
    assert len(SimRng("s").bytes(5)) == 5


def test_certain_answers_draw_nothing() -> None:
    rng, untouched = SimRng("s"), SimRng("s")
    assert not rng.happens(0.0)
    assert rng.happens(1.0)
    assert rng.random() == untouched.random()


def test_draws_are_within_their_bounds() -> None:
    rng = SimRng("s")
    assert all(2.0 <= rng.between(2.0, 3.0) < 3.0 for _ in range(100))
    assert {rng.randrange(1, 4) for _ in range(100)} == {1, 2, 3}
    assert {rng.weighted("ab", (1.0, 0.0)) for _ in range(50)} == {"a"}
    assert {rng.choice("xy") for _ in range(50)} == {"x", "y"}
    assert sorted(rng.sample(range(5), 5)) == [0, 1, 2, 3, 4]
    assert rng.exponential(0.0) == 0.0
    mean = sum(rng.exponential(2.0) for _ in range(4000)) / 4000
    assert 1.8 < mean < 2.2
    assert 0.25 < sum(rng.happens(0.3) for _ in range(4000)) / 4000 < 0.35
    items = list(range(20))
    rng.shuffle(items)
    assert sorted(items) == list(range(20)) != items

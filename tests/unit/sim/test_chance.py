"""Seeded chance: streams of their own, and draws that mean what they say."""

from ebla.sim.chance import SimChance


def test_streams_are_apart_and_repeatable() -> None:
    one, again = SimChance("s"), SimChance("s")
    fork = again.fork("disk")
    assert [one.random() for _ in range(3)] == [again.random() for _ in range(3)], "a fork draws nothing"
    assert fork.random() == SimChance("s").fork("disk").random() != SimChance("s").fork("net").random()
    assert SimChance("s").uuid() == SimChance("s").uuid()
    assert SimChance("s").uuid().version == 4
    assert len(SimChance("s").bytes(5)) == 5


def test_certain_answers_draw_nothing() -> None:
    chance, untouched = SimChance("s"), SimChance("s")
    assert not chance.happens(0.0)
    assert chance.happens(1.0)
    assert chance.random() == untouched.random()


def test_draws_are_within_their_bounds() -> None:
    chance = SimChance("s")
    assert all(2.0 <= chance.between(2.0, 3.0) < 3.0 for _ in range(100))
    assert {chance.randrange(1, 4) for _ in range(100)} == {1, 2, 3}
    assert {chance.weighted("ab", (1.0, 0.0)) for _ in range(50)} == {"a"}
    assert {chance.choice("xy") for _ in range(50)} == {"x", "y"}
    assert sorted(chance.sample(range(5), 5)) == [0, 1, 2, 3, 4]
    assert chance.exponential(0.0) == 0.0
    mean = sum(chance.exponential(2.0) for _ in range(4000)) / 4000
    assert 1.8 < mean < 2.2
    assert 0.25 < sum(chance.happens(0.3) for _ in range(4000)) / 4000 < 0.35
    items = list(range(20))
    chance.shuffle(items)
    assert sorted(items) == list(range(20)) != items

import pytest

from ebla.cql.statement_cache import LruCache


def test_what_was_used_longest_ago_goes_first() -> None:
    kept: LruCache[str, int] = LruCache(3)
    for place, name in enumerate("abc"):
        kept.put(name, place)
    assert kept.get("a") == 0
    kept.put("d", 3)
    assert [kept.get(name) for name in "abcd"] == [0, None, 2, 3]
    assert len(kept) == 3


def test_a_value_is_replaced_and_becomes_the_newest() -> None:
    kept: LruCache[str, int] = LruCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    kept.put("a", 3)
    kept.put("c", 4)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (3, None, 4)


@pytest.mark.parametrize("most", [1, 2, 50])
def test_it_never_holds_more(most: int) -> None:
    kept: LruCache[int, int] = LruCache(most)
    for key in range(200):
        kept.put(key, key)
        kept.get(key // 2)
        assert len(kept) <= most
    assert kept.get(199) == 199

import pytest

from ebla.cql.statement_cache import LruCache


def test_what_was_used_longest_ago_goes_first() -> None:
    kept: LruCache[str, int] = LruCache(30)
    for place, name in enumerate("abc"):
        kept.put(name, place, 10)
    assert kept.get("a") == 0
    kept.put("d", 3, 10)
    assert [kept.get(name) for name in "abcd"] == [0, None, 2, 3]
    kept.put("large", 4, 25)
    assert [kept.get(name) for name in ("a", "c", "d", "large")] == [None, None, None, 4]


def test_a_value_is_replaced_and_becomes_the_newest() -> None:
    kept: LruCache[str, int] = LruCache(20)
    kept.put("a", 1, 10)
    kept.put("b", 2, 10)
    kept.put("a", 3, 10)
    kept.put("c", 4, 10)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (3, None, 4)


@pytest.mark.parametrize("most", [1, 2, 50])
def test_it_never_holds_more_except_for_a_single_entry(most: int) -> None:
    kept: LruCache[int, int] = LruCache(most * 7)
    for key in range(200):
        kept.put(key, key, 7)
        kept.get(key // 2)
        assert len(kept) <= most
    assert kept.get(199) == 199
    kept.put(200, 200, most * 100)
    assert (len(kept), kept.get(200)) == (1, 200)

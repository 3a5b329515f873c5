"""The order of keys, whatever was put in and taken out."""

import random

from ebla.group0.sorted_keys import RUN_KEYS, SortedKeys


def test_it_agrees_with_a_sorted_list_through_growth_and_emptying() -> None:
    rng = random.Random(5)
    keys = SortedKeys()
    held: list[str] = []
    for turn in range(12_000):
        grow = turn < 6_000
        if not held or rng.random() < (0.8 if grow else 0.1):
            key = f"{rng.choice('abc')}/{rng.randrange(1_000_000):06d}"
            if key not in held:
                keys.add(key)
                held.append(key)
        else:
            keys.remove(held.pop(rng.randrange(len(held))))
        if turn % 500 == 0 or not held:
            for prefix in ("", "a", "a/", "b/5", "c/99", "d"):
                assert keys.below(prefix) == sorted(key for key in held if key.startswith(prefix))
    assert keys.below("") == sorted(held)


def test_it_begins_with_many_keys_and_goes_on() -> None:
    names = [f"k/{number:05d}" for number in range(0, 6 * RUN_KEYS, 2)]
    keys = SortedKeys(reversed(names))
    assert keys.below("k/") == names
    for number in range(1, 6 * RUN_KEYS, 2):
        keys.add(f"k/{number:05d}")
    assert keys.below("") == [f"k/{number:05d}" for number in range(6 * RUN_KEYS)]
    assert keys.below("k/0001") == [f"k/{number:05d}" for number in range(10, 20)]


def test_a_key_with_the_highest_characters_is_below_its_prefix() -> None:
    keys = SortedKeys(["a", "a\U0010fffe", "b"])
    keys.add("A")
    assert keys.below("a") == ["a", "a\U0010fffe"]
    keys.remove("A")
    assert keys.below("") == ["a", "a\U0010fffe", "b"]


def test_keys_in_order_are_put_behind_all_others_or_not_at_all() -> None:
    names = [f"k/{number:05d}" for number in range(3 * RUN_KEYS + 7)]
    keys = SortedKeys()
    assert keys.extend(names[:5])
    assert keys.extend([])
    assert keys.extend(names[5:])
    assert not keys.extend(["k/99999", "k/99998"])
    assert not keys.extend(["a"])
    assert not keys.extend([names[-1]]), "it is there"
    assert (keys.below(""), len(keys)) == (names, len(names))
    copy = keys.copy()
    copy.add("k/00000x")
    copy.remove(names[3])
    assert keys.below("") == names
    assert copy.below("") == sorted([*names[:3], *names[4:], "k/00000x"])

from collections.abc import Callable
from typing import Any

import pytest

from ebla.topology.frozen_map import FrozenMap


def test_put_and_without_leave_the_old_map_as_it_was() -> None:
    old = FrozenMap({"a": 1})
    assert old.put("b", 2) == {"a": 1, "b": 2}
    assert old.put_all({"a": 3}) == {"a": 3}
    assert old.without("a", "absent") == {}
    assert old == {"a": 1}
    assert isinstance(old.put("b", 2), FrozenMap)


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.__setitem__("a", 2),
        lambda each: each.__delitem__("a"),
        lambda each: each.__ior__({"a": 2}),
        lambda each: each.clear(),
        lambda each: each.pop("a"),
        lambda each: each.popitem(),
        lambda each: each.setdefault("b", 2),
        lambda each: each.update(b=2),
    ],
)
def test_it_does_not_change(change: Callable[[Any], object]) -> None:
    frozen = FrozenMap({"a": 1})
    with pytest.raises(TypeError, match="does not change"):
        change(frozen)
    assert frozen == {"a": 1}

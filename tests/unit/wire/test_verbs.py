"""Numbers are assigned once. A new verb needs a new line in the golden file; a changed line breaks compatibility."""

from pathlib import Path
from typing import get_args, get_origin

import msgspec
import pytest

from ebla.wire import verbs
from ebla.wire.verbs import Notice, Verb

GOLDEN = Path(__file__).with_name("verbs.golden")
VERBS = [value for value in vars(verbs).values() if isinstance(value, Verb | Notice)]


def shape_of(kind: type[msgspec.Struct]) -> str:
    """Of an order: what the order carries."""
    order, carried = get_origin(kind), get_args(kind)
    name, fields = kind.__name__, (order or kind).__struct_fields__
    return f"{name}({', '.join(fields)})" + "".join(f" {shape_of(each)}" for each in carried)


def line_of(verb: Verb[msgspec.Struct, msgspec.Struct] | Notice[msgspec.Struct]) -> str:
    if isinstance(verb, Notice):
        shape = shape_of(verb.message)
    else:
        shape = f"{shape_of(verb.request)} -> {shape_of(verb.answer)}"
    return f"{verb.number} {verb.name} {verb.lane.name.lower()} {shape}"


def test_numbers_and_names_are_unique() -> None:
    assert len({verb.number for verb in VERBS}) == len(VERBS)
    assert len({verb.name for verb in VERBS}) == len(VERBS)


def test_the_golden_file_pins_them() -> None:
    golden = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    current = [line_of(verb) for verb in sorted(VERBS, key=lambda verb: verb.number)]
    assert len(current) == len(golden), "a verb was added or dropped: its line in verbs.golden goes with it"
    for now, pinned in zip(current, golden):
        assert now == pinned or _only_appended(pinned, now), f"changed on the wire: {pinned!r} is now {now!r}"


def _only_appended(pinned: str, now: str) -> bool:
    """Fields may be appended: each bracket of the new line begins with that of the old one."""
    old, new = pinned.split("("), now.split("(")
    return len(old) == len(new) and all(
        part.split(")")[0] == "" or longer.startswith(part.split(")")[0]) for part, longer in zip(old[1:], new[1:])
    )


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_structs_can_grow(verb: Verb[msgspec.Struct, msgspec.Struct] | Notice[msgspec.Struct]) -> None:
    """Frozen arrays that let a longer array of a newer peer pass."""
    kinds = (verb.message,) if isinstance(verb, Notice) else (verb.request, verb.answer, *get_args(verb.request))
    for kind in (get_origin(kind) or kind for kind in kinds):
        assert kind.__struct_config__.array_like
        assert kind.__struct_config__.frozen
        assert not kind.__struct_config__.forbid_unknown_fields


def test_golden_comparison_sees_changes() -> None:
    assert _only_appended("1 a control A(x) -> B()", "1 a control A(x, y) -> B(z)")
    assert not _only_appended("1 a control A(x, y) -> B()", "1 a control A(y, x) -> B()")
    assert not _only_appended("1 a control A(x, y) -> B()", "1 a control A(x) -> B()")

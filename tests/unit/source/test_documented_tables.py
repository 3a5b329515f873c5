"""The tables of docs/spark.md are those of the code."""

import re
from pathlib import Path

from ebla.model.cql_types import Scalar, ScalarType
from ebla.source.options import OPTIONS, OptionSide
from ebla.source.spark_types import ALSO_READ_AS, ALSO_WRITTEN_FROM, choices

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


def type_row(scalar: Scalar) -> str:
    kind = ScalarType(scalar)
    usual, *read = choices(kind, ALSO_READ_AS).split(", ")
    written = choices(kind, ALSO_WRITTEN_FROM).split(", ")[1:]
    return f"| {kind} | `{usual}` | {', '.join(read)} | {', '.join(written)} |"


def test_every_option_is_told_with_its_side_its_default_and_what_it_means() -> None:
    """And no other: a row is | name | side | meaning | default |."""
    told = re.findall(r"^\| `([a-z_.]+)` \| ([a-z ]+) \| (.+) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    sides = {str(side) for side in OptionSide}
    shown = {(name, side): default.strip().strip("`") for name, side, _, default in told if side in sides}
    assert shown == {(name, str(side)): value for side, values in OPTIONS.items() for name, value in values.items()}


def test_every_type_is_told() -> None:
    documented = DOCUMENT.read_text().splitlines()
    assert [type_row(scalar) for scalar in Scalar if type_row(scalar) not in documented] == []

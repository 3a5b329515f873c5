"""The tables of docs/spark.md are those of the code."""

from pathlib import Path

from ebla.model.cql_types import Scalar, ScalarType
from ebla.source.options import OPTIONS, SparkOption
from ebla.source.spark_types import ALSO_READ_AS, ALSO_WRITTEN_FROM, choices

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


def option_row(option: SparkOption) -> str:
    default = f"`{option.default}`" if option.default else ""
    meaning = option.meaning.replace("<", "&lt;")
    return f"| `{option.name}` | {option.side} | {meaning} | {default} |"


def type_row(scalar: Scalar) -> str:
    kind = ScalarType(scalar)
    usual, *read = choices(kind, ALSO_READ_AS).split(", ")
    written = choices(kind, ALSO_WRITTEN_FROM).split(", ")[1:]
    return f"| {kind} | `{usual}` | {', '.join(read)} | {', '.join(written)} |"


def test_every_option_is_told() -> None:
    documented = DOCUMENT.read_text().splitlines()
    assert [option_row(option) for option in OPTIONS if option_row(option) not in documented] == []


def test_every_type_is_told() -> None:
    documented = DOCUMENT.read_text().splitlines()
    assert [type_row(scalar) for scalar in Scalar if type_row(scalar) not in documented] == []

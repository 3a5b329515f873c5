"""The guide's table of causes is that of the code."""

import re
from pathlib import Path

from ebla.control.coordinator.wait_causes import WaitKind

GUIDE = (Path(__file__).parents[3] / "docs" / "nodes.md").read_text()


def causes() -> list[str]:
    section = GUIDE.partition("## What an operation waits for")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_every_cause_has_one_row_with_a_way_out() -> None:
    for kind in WaitKind:
        assert sum(cause.startswith(kind.value) for cause in causes()) == 1, kind


def test_every_row_is_a_cause() -> None:
    for cause in causes():
        assert any(cause.startswith(kind.value) for kind in WaitKind), cause

"""Aligned columns that fit a terminal: no cell breaks, and less important columns are left out instead. Pure."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
TEXT_WIDTH_MIN = 20
"""Columns that a text keeps before another column is left out."""


@dataclass(slots=True, kw_only=True)
class TextColumn:
    name: str
    cells: list[str]
    is_right: bool = False
    drop_rank: int = 0
    """Where there is no room, columns are left out in this order; 0: it stays."""

    @property
    def width(self) -> int:
        return max(len(cell) for cell in (self.name, *self.cells))

    def shorten(self, width: int) -> None:
        self.cells = [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell in self.cells]

    def lines(self) -> list[str]:
        """Its name, then its cells."""
        width = self.width
        return [cell.rjust(width) if self.is_right else cell.ljust(width) for cell in (self.name, *self.cells)]


def line_width(columns: Sequence[TextColumn]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def leave_out(columns: Sequence[TextColumn], width: int) -> list[TextColumn]:
    """As few as possible."""
    kept = list(columns)
    for column in sorted((one for one in columns if one.drop_rank), key=lambda one: one.drop_rank):
        if line_width(kept) <= width:
            break
        kept.remove(column)
    return kept


def joined(columns: Sequence[TextColumn]) -> list[str]:
    return [GAP.join(cells).rstrip() for cells in zip(*(column.lines() for column in columns))]


def fitted(columns: Sequence[TextColumn], width: int) -> list[str]:
    """The last column is text: it has the room that the others leave, and its lines begin below each other."""
    *others, text = columns
    text_width = min(text.width, TEXT_WIDTH_MIN)
    others = leave_out(others, width - text_width - len(GAP))
    begins = joined(others) if others else [""] * (len(text.cells) + 1)
    indent = line_width(others) + len(GAP) if others else 0
    room = max(width - indent, text_width)
    lines = []
    for begin, cell in zip(begins, (text.name, *text.cells)):
        parts = textwrap.wrap(cell, room, break_on_hyphens=False) or [""]
        lines += [f"{begin:<{indent}}{parts[0]}".rstrip(), *(" " * indent + part for part in parts[1:])]
    return lines

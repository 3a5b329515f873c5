"""An invariant's label is in the code that keeps it, in a checker and in a test.

An invariant without a checker is only hoped for, and a checker whose label is nowhere in the code guards nothing.
"""

import enum
import re
from collections.abc import Iterable

from tests.tidy.source import Source

LABEL = re.compile(r"\bINV-[A-Z0-9]+-[A-Z0-9]+\b")


class Home(enum.StrEnum):
    CODE = "code"
    CHECKER = "checker"
    TEST = "test"
    TEXT = "text"


NEEDED = (Home.CODE, Home.CHECKER, Home.TEST)


def lonely_labels(sources: Iterable[Source]) -> list[str]:
    """Every label of the product is in its code, in a checker and in a test; tests and documents name no others."""
    places: dict[str, dict[Home, str]] = {}
    for source in sources:
        for number, line in enumerate(source.text.splitlines(), start=1):
            for label in LABEL.findall(line):
                places.setdefault(label, {}).setdefault(_home(source), f"{source.path}:{number}")
    complaints = []
    for label, homes in sorted(places.items()):
        first = next(iter(homes.values()))
        if Home.CODE not in homes and Home.CHECKER not in homes:
            complaints.append(f"{first}: {label} is not a promise of the product")
        elif missing := [home for home in NEEDED if home not in homes]:
            complaints.append(f"{first}: {label} is in no {' and in no '.join(missing)}")
    return complaints


def _home(source: Source) -> Home:
    """Checkers are those of the simulator, and the `…invariants.py` modules of the pure packages."""
    if source.path.startswith("tests/"):
        return Home.TEST
    if not source.is_product:
        return Home.TEXT
    if source.path.startswith("src/ebla/sim/checkers/") or source.path.endswith("invariants.py"):
        return Home.CHECKER
    return Home.CODE


RULES = (lonely_labels,)
"""Run on every file except the house rules, whose samples contain made-up labels."""

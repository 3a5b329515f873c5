"""Invariants are promises with a label; a label stands where it is kept, where it is checked and where it is tested.

A promise that no checker knows is a wish, and a checker whose label stands nowhere in the code guards nothing.
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
    """Checkers are the simulator's, and the modules of a pure package called for its invariants."""
    if source.path.startswith("tests/"):
        return Home.TEST
    if not source.is_product:
        return Home.TEXT
    if source.path.startswith("src/ebla/sim/checkers/") or source.path.endswith("invariants.py"):
        return Home.CHECKER
    return Home.CODE


RULES = (lonely_labels,)
"""For every file but the house rules' own, whose samples name labels that are none."""

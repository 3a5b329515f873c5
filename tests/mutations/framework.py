"""What a mutation is, and how to write one.

A mutation is a named, deliberate bug: a function under `src/`, a piece of code in it, what to put in its place, and
the check that must then fail. The bug is put in from outside, while a fresh process imports the module; the product
has no switch for it. A mutation that no check notices means that the tests would not notice the bug either.

To add some, write `tests/mutations/<area>.py`:

    from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

    MUTATIONS = (
        Mutation(
            name="store-answer-before-sync",
            module="ebla.storage.store",
            function="ShardStore.write",
            find="await self.log.wait_durable(sequence)",
            replace="pass",
            check=SimSeeds("store", "1-40"),
            why="a crash between the answer and the sync loses an acknowledged write",
        ),
    )

- `function` is `function`, `Class.method`, `Class` or `function.inner`; empty for the top level of the module.
- `find` must occur exactly once in that function, and the changed code must still compile; a tidy test checks both in
  every `make check`, so a refactoring cannot quietly disarm a mutation. Layout, comments, quotes and line breaks do
  not matter (`pattern.py`). Later lines of `replace` are indented relative to its first.
- Break behaviour, not the program: a module that fails to import is an error of the mutation, not a catch.
- `check` is the narrowest thing that ought to notice. `PytestCheck` takes test ids (a file is one too); the tests
  should pass unmutated and never depend on luck. `SimSeeds` runs the seeds of a scenario in order up to the first
  that fails.
- A hang is not a catch: a check must report the failure within `limit_s`.
- `why` says what a user would suffer, in one line.

Run: `python -m tests.mutations` (all, on every core), `… NAME…` (an area, or the start of names), `--list`,
`--baseline` (each check once without its bug: all must pass), `--jobs N`. Exit code 1 if one escapes or errs.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tests.mutations
from tests.mutations.pattern import NoMatch, substitute

ROOT = Path(__file__).resolve().parents[2]

FRAMEWORK_MODULES = ("__main__", "framework", "hook", "pattern", "run", "sim_seeds")
"""Every other module of this package is an area and must have `MUTATIONS`."""


@dataclass(frozen=True, slots=True)
class PytestCheck:
    """Tests, of which at least one must fail."""

    test_ids: tuple[str, ...]

    def __init__(self, *test_ids: str) -> None:
        assert test_ids, "a check without tests notices nothing"
        object.__setattr__(self, "test_ids", test_ids)

    def __str__(self) -> str:
        return " ".join(self.test_ids)


@dataclass(frozen=True, slots=True)
class SimSeeds:
    """Seeds of a simulated scenario (`"1-200"`, both ends included), of which at least one must fail."""

    scenario: str
    seeds: str

    def __str__(self) -> str:
        return f"scenario {self.scenario}, seeds {self.seeds}"


Check = PytestCheck | SimSeeds


class UnfitMutation(Exception):
    """The mutation cannot be applied to the source as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    name: str
    module: str
    function: str
    find: str
    replace: str
    check: Check
    why: str
    limit_s: int = 120

    def source_path(self) -> Path:
        stem = ROOT / "src" / self.module.replace(".", "/")
        package = stem / "__init__.py"
        return package if package.exists() else stem.with_suffix(".py")

    def mutated_source(self) -> str:
        """The module's text with the bug in it. Raises `UnfitMutation`."""
        path = self.source_path()
        if not path.exists():
            raise UnfitMutation(f"{self.name}: no module {self.module}")
        try:
            return substitute(path.read_text(), self.function, self.find, self.replace)
        except NoMatch as error:
            raise UnfitMutation(f"{self.name}: {error} ({self.module})") from error


def all_areas() -> dict[str, tuple[Mutation, ...]]:
    """The mutations of each area; an area has the name of its file."""
    names = [info.name for info in pkgutil.iter_modules(tests.mutations.__path__)]
    areas = [name for name in names if name not in FRAMEWORK_MODULES]
    return {area: importlib.import_module(f"{tests.mutations.__name__}.{area}").MUTATIONS for area in areas}


def all_mutations() -> tuple[Mutation, ...]:
    """The mutations of all areas, by name."""
    found: dict[str, Mutation] = {}
    for mutation in (one for mutations in all_areas().values() for one in mutations):
        if mutation.name in found:
            raise UnfitMutation(f"two mutations are called {mutation.name}")
        found[mutation.name] = mutation
    return tuple(found[name] for name in sorted(found))


def choose(names: Sequence[str]) -> list[Mutation]:
    """The mutations of the named areas, and those whose name starts with one of `names`; without names, all."""
    in_areas = {mutation.name for area in all_areas() if area in names for mutation in all_areas()[area]}
    return [one for one in all_mutations() if not names or one.name in in_areas or one.name.startswith(tuple(names))]

"""`python -m tests.mutations.sim_seeds SCENARIO A-B`: seeds in order, up to the first that fails.

Drives the simulator by its own command line, inside this process, so that what a mutation is judged by is what a
person would run. Chunks grow because most bugs show within a few seeds and the rest should not pay for that.
"""

import contextlib
import io
import re
import runpy
import sys
from collections.abc import Iterator

CHUNK_SEEDS_MAX = 16

PASSED, FAILED, NOT_RUN = 0, 1, 3


def chunks(first: int, last: int) -> Iterator[tuple[int, int]]:
    size = 1
    while first <= last:
        end = min(first + size - 1, last)
        yield first, end
        first = end + 1
        size = min(size * 2, CHUNK_SEEDS_MAX)


def simulate(scenario: str, first: int, last: int) -> tuple[int, str]:
    """The simulator's exit code and what it printed."""
    printed = io.StringIO()
    sys.argv = ["ebla.sim", "--scenario", scenario, "--seeds", f"{first}-{last}"]
    code: object = None
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_module("ebla.sim", run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    if code is None:
        return PASSED, printed.getvalue()
    return (code if isinstance(code, int) else FAILED), printed.getvalue()


def main() -> int:
    scenario, seeds = sys.argv[1:]
    first, last = (int(end) for end in seeds.split("-"))
    for low, high in chunks(first, last):
        code, printed = simulate(scenario, low, high)
        if code == PASSED:
            continue
        print(printed)
        if code != FAILED:
            print(f"the simulator ended with code {code}")
            return NOT_RUN
        named = re.search(r"--seed[= ](\d+)", printed)
        print(f"FAILED {scenario} seed {named.group(1) if named else f'{low}-{high}'}")
        return FAILED
    return PASSED


if __name__ == "__main__":
    # An error of the simulator itself must not look like a failing seed: Python's own code for a traceback is 1 too.
    try:
        sys.exit(main())
    except Exception as error:
        print(f"the simulator raised {error!r}")
        sys.exit(NOT_RUN)

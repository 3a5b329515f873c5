"""`python -m tests.mutations.sim_seeds SCENARIO A-B`: seeds in order, up to the first that fails.

In one process, because most bugs show within a few seeds and a pool would cost more than it saves; mutations run side
by side instead.
"""

import sys
import traceback

from ebla.sim.scenario import find_scenario, run_scenario

PASSED, FAILED, NOT_RUN = 0, 1, 3


def main() -> int:
    name, seeds = sys.argv[1:]
    first, last = (int(end) for end in seeds.split("-"))
    assert first <= last
    scenario = find_scenario(name)
    for seed in range(first, last + 1):
        outcome = run_scenario(scenario, seed)
        if outcome.failure is not None:
            print(f"FAILED {name} seed {seed}: {outcome.failure.splitlines()[0]}")
            return FAILED
    return PASSED


if __name__ == "__main__":
    # An error outside a run must not look like a failing seed: Python's own exit code for a traceback is 1 too.
    try:
        sys.exit(main())
    except Exception:
        traceback.print_exc()
        sys.exit(NOT_RUN)

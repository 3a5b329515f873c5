"""`python -m tests.mutations`: apply each bug and count how many are caught by their checks."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tests.mutations.framework import Mutation, choose
from tests.mutations.run import Result, Verdict, try_baseline, try_mutation


@dataclass(frozen=True, slots=True)
class Job:
    title: str
    work: Callable[[], Result]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = choose(options.names)
    if not chosen:
        print(f"no mutation is called {' or '.join(options.names) or 'anything'}; --list shows them")
        return 1
    if options.list:
        width = max(len(mutation.name) for mutation in chosen)
        for mutation in chosen:
            print(f"{mutation.name:<{width}}  {mutation.module}: {mutation.why}")
        return 0
    jobs = baseline_jobs(chosen) if options.baseline else [_mutation_job(mutation) for mutation in chosen]
    good = run_jobs(jobs, options.jobs)
    print(f"{good}/{len(jobs)} {'checks pass unmutated' if options.baseline else 'caught'}")
    return 0 if good == len(jobs) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only an area, or those whose name starts so")
    parser.add_argument("--list", action="store_true", help="show them and stop")
    parser.add_argument("--baseline", action="store_true", help="run each check without its bug; all must pass")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once (default: one per core)")
    return parser


def _mutation_job(mutation: Mutation) -> Job:
    return Job(mutation.name, lambda: try_mutation(mutation))


def baseline_jobs(mutations: Sequence[Mutation]) -> list[Job]:
    limits: dict[str, tuple[Mutation, int]] = {}
    for mutation in mutations:
        _, limit_s = limits.get(str(mutation.check), (mutation, 0))
        limits[str(mutation.check)] = (mutation, max(limit_s, mutation.limit_s))
    return [_baseline_job(mutation, limit_s) for mutation, limit_s in limits.values()]


def _baseline_job(mutation: Mutation, limit_s: int) -> Job:
    return Job(str(mutation.check), lambda: try_baseline(mutation.check, limit_s))


def run_jobs(jobs: Sequence[Job], at_once: int) -> int:
    """Returns how many succeeded. Prints one line as each ends, so that progress is visible."""
    good = 0
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(job.work): job for job in jobs}
        for done, future in enumerate(as_completed(running), start=1):
            result = future.result()
            good += result.verdict in (Verdict.CAUGHT, Verdict.PASSED)
            title = running[future].title
            print(
                f"[{done}/{len(jobs)}] {result.verdict:<7} {result.seconds:6.1f} s  {title}  {result.detail}",
                flush=True,
            )
    return good


if __name__ == "__main__":
    sys.exit(main())

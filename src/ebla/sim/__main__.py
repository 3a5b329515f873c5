"""`python -m ebla.sim`: replay one seed exactly, or run many seeds and print how to replay those that fail."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from ebla.model.errors import InvalidRequest
from ebla.sim.scenario import RunOutcome, Scenario, all_scenarios, find_scenario, run_named, run_scenario

SEED = 1
SEEDS_MAX = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.narrate and chosen.seeds is not None:
        parser.error("--narrate prints one run: use it with --seed")
    try:
        if chosen.list:
            return _list()
        scenarios = _scenarios(chosen)
        if chosen.seeds is None:
            return max(_replay(scenario, chosen) for scenario in scenarios)
        return _sweep(scenarios, chosen)
    except InvalidRequest as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ebla.sim", description="Run real code in a simulated world of machines that fail."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--scenario", metavar="NAME", help="the scenario to run (see --list)")
    which.add_argument("--all", action="store_true", help="every scenario")
    which.add_argument("--list", action="store_true", help="list the scenarios")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=_seed, metavar="N", help=f"one run, replayed exactly (default {SEED})")
    seeds.add_argument("--seeds", type=_seed_range, metavar="A-B", help="many runs, on every core")
    parser.add_argument(
        "--seconds", type=_seconds, metavar="S", help="simulated seconds, instead of the scenario's own"
    )
    parser.add_argument("--narrate", action="store_true", help="print one line per event")
    return parser


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0, not {text!r}")
    return int(text)


def _seed_range(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"seeds are given as A-B, for example 1-200, not {text!r}")
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise argparse.ArgumentTypeError(f"{text!r} is empty: the first seed is above the last")
    if last - first >= SEEDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} has more than {SEEDS_MAX} seeds")
    return range(first, last + 1)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"seconds are a number, not {text!r}") from None
    if not 0.0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"seconds must be above 0 and at most 1000000, not {text}")
    return seconds


def _scenarios(chosen: argparse.Namespace) -> list[Scenario]:
    return list(all_scenarios().values()) if chosen.all else [find_scenario(chosen.scenario)]


def _list() -> int:
    for scenario in all_scenarios().values():
        _print_line(f"{scenario.name:<16} {scenario.seconds:>6g} s  {scenario.summary}")
    return 0


def _replay(scenario: Scenario, chosen: argparse.Namespace) -> int:
    seed = SEED if chosen.seed is None else chosen.seed
    outcome = run_scenario(scenario, seed, chosen.seconds, _print_line if chosen.narrate else None)
    if outcome.failure is not None:
        _print_line(outcome.report)
        _print_line(f"{scenario.name} fails at seed {outcome.seed}: {outcome.failure}")
    else:
        _print_line(
            f"{scenario.name} is well at seed {outcome.seed}: {outcome.simulated_s:.1f} simulated s"
            f" in {outcome.cpu_s:.2f} s, {outcome.steps} steps"
        )
    _print_line(f"trace={outcome.trace}")
    return 0 if outcome.failure is None else 1


def _sweep(scenarios: Sequence[Scenario], chosen: argparse.Namespace) -> int:
    """Each run has a worker process: a run is single-threaded, and its crash must not end the others."""
    runs = [(scenario.name, seed, chosen.seconds) for seed in chosen.seeds for scenario in scenarios]
    failed: list[RunOutcome] = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(run_named, *run) for run in runs]
        for done, future in enumerate(as_completed(pending), start=1):
            outcome = future.result()
            if outcome.failure is not None:
                failed.append(outcome)
                _progress("")
                _print_line(f"FAILED {outcome.scenario} seed {outcome.seed}: {outcome.failure}\n  {outcome.replay}")
            _progress(f"{done}/{len(runs)} runs, {len(failed)} failed")
    _progress("")
    _print_line(f"{len(runs)} runs, {len(failed)} failed")
    for outcome in sorted(failed, key=lambda outcome: (outcome.scenario, outcome.seed)):
        _print_line(f"  {outcome.replay}")
    return 1 if failed else 0


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

"""What short commands cost: the CPU time of `ebla --version`, `--help` and `status` against that of their libraries.

    python -m benchmarks.bench_cli [--rounds N]

`status` calls three running nodes. Rounds of all of them alternate, and each figure is the median of the ratios of its
rounds. One line per figure, the last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figures

LIBRARIES = "import typer, rich.table, asyncio, ssl, msgspec"
NODES = 3
BASE_ADDRESS = "127.89.0.1"
COMMAND_S = 60.0
UP_S = 120.0
LIMITS = {"version": 1.0, "help": 1.5, "status": 2.0}
COMMANDS = {"version": ("--version",), "help": ("--help",), "status": ("status",)}


def environment() -> dict[str, str]:
    """An installed command has compiled modules, so a checkout gets them too."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(Path.cwd() / "src")}


def cpu_s(arguments: tuple[str, ...], folder: Path) -> float:
    """Of the process, user and system. Other processes that this one has started do not end meanwhile."""
    before = os.times()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        timeout=COMMAND_S,
        check=True,
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def run_ebla(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "ebla", *arguments]
    subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, timeout=UP_S, check=True)


def measure(folder: Path, rounds: int) -> tuple[float, dict[str, float]]:
    """The CPU time of the libraries, and the ratios."""
    libraries = ("-c", LIBRARIES)
    commands = {name: ("-m", "ebla", *arguments) for name, arguments in COMMANDS.items()}
    for arguments in (libraries, *commands.values()):
        cpu_s(arguments, folder)  # compiles what it imports
    base_s: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        base_s.append(cpu_s(libraries, folder))
        for name, arguments in commands.items():
            ratios[name].append(cpu_s(arguments, folder) / base_s[-1])
    return statistics.median(base_s), {name: statistics.median(found) for name, found in ratios.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="What short commands cost.")
    parser.add_argument("--rounds", type=int, default=11)
    chosen = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="ebla-") as name:
        folder = Path(name)
        shape = ("--nodes", str(NODES), "--base-address", BASE_ADDRESS, "--set", "pipeline.enabled=false")
        run_ebla(folder, "up", "--no-follow", *shape)
        try:
            base_s, ratios = measure(folder, chosen.rounds)
        finally:
            run_ebla(folder, "down")
    print(f"{'libraries':10} {figures.note('libraries_cpu_s', base_s):.3f} s of CPU")
    for name, ratio in ratios.items():
        limit = figures.at_most(f"{name}_ratio", ratio, LIMITS[name])
        print(f"{name:10} {ratio:.2f} times the libraries, {limit}")
    print(json.dumps(figures.values))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())

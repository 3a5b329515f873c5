"""Runs one check in its own process, with or without a mutation's bug, and judges the result."""

import enum
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.framework import ROOT, Check, Mutation, PytestCheck, SimSeeds, UnfitMutation

HOOK = Path(__file__).parent / "hook"

CHECK_PASSED, CHECK_FAILED = 0, 1
"""Exit codes of both kinds of check; anything else means that the check itself did not work."""


class Verdict(enum.StrEnum):
    CAUGHT = "caught"
    PASSED = "passed"
    ESCAPED = "ESCAPED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Result:
    verdict: Verdict
    detail: str
    """What caught it, or why nothing did; one line, or a few for an error."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """The result of a check's process. `exit_code` is None if the time limit ended it."""

    exit_code: int | None
    output: str
    applied: bool
    broken: str


def try_mutation(mutation: Mutation) -> Result:
    started = time.perf_counter()
    try:
        order = {"module": mutation.module, "source": mutation.mutated_source()}
    except UnfitMutation as error:
        return Result(Verdict.ERROR, str(error), 0.0)
    run = _run_check(mutation.check, order, mutation.limit_s)
    verdict, detail = judge(run, mutation)
    return Result(verdict, detail, time.perf_counter() - started)


def judge(run: CheckRun, mutation: Mutation) -> tuple[Verdict, str]:
    """A failing check is a catch only if the module was imported with the bug in it."""
    if run.broken:
        return Verdict.ERROR, f"{mutation.module} does not import with the bug in it:\n{run.broken}"
    if not run.applied:
        return Verdict.ERROR, f"the check never imported {mutation.module}\n{_last_lines(run.output)}"
    if run.exit_code is None:
        return Verdict.ESCAPED, f"no failure reported within {mutation.limit_s} s by {mutation.check}"
    if run.exit_code == CHECK_PASSED:
        return Verdict.ESCAPED, f"{mutation.check} passed; {mutation.why}"
    if run.exit_code == CHECK_FAILED:
        return Verdict.CAUGHT, _caught_by(run.output)
    return Verdict.ERROR, f"the check ended with code {run.exit_code}\n{_last_lines(run.output)}"


def try_baseline(check: Check, limit_s: int) -> Result:
    started = time.perf_counter()
    run = _run_check(check, None, limit_s)
    seconds = time.perf_counter() - started
    if run.exit_code == CHECK_PASSED:
        return Result(Verdict.PASSED, "", seconds)
    if run.exit_code is None:
        return Result(Verdict.ERROR, f"not done within {limit_s} s", seconds)
    return Result(Verdict.ERROR, f"fails without a bug (code {run.exit_code})\n{_last_lines(run.output)}", seconds)


def _run_check(check: Check, order: dict[str, str] | None, limit_s: int) -> CheckRun:
    # The name is short because tests put Unix sockets below it, and socket paths are limited to about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="em-", ignore_cleanup_errors=True) as folder_name:
        folder = Path(folder_name)
        environment = _environment(folder, order)
        process = subprocess.Popen(
            _command(check, folder),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        exit_code: int | None
        try:
            output, _ = process.communicate(timeout=limit_s)
            exit_code = process.returncode
        except subprocess.TimeoutExpired:
            exit_code = None
            output = ""
        finally:
            _end_group(process)
        broken = folder / "broken"
        return CheckRun(
            exit_code=exit_code,
            output=output,
            applied=(folder / "applied").exists(),
            broken=broken.read_text() if broken.exists() else "",
        )


def _environment(folder: Path, order: dict[str, str] | None) -> dict[str, str]:
    # A broken run must leave nothing that a later honest run would read: no bytecode, no hypothesis examples.
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "TMPDIR": str(folder),
    }
    if order is not None:
        order_path = folder / "order.json"
        order_path.write_text(json.dumps(order))
        environment["EBLA_MUTATION_ORDER"] = str(order_path)
        inherited = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOOK), inherited)))
    return environment


def _command(check: Check, folder: Path) -> list[str]:
    match check:
        case PytestCheck(test_ids):
            options = ["-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
            options += ["--hypothesis-seed=1", f"--basetemp={folder / 't'}"]
            return [sys.executable, "-m", "pytest", *options, *test_ids]
        case SimSeeds(scenario, seeds):
            return [sys.executable, "-m", "tests.mutations.sim_seeds", scenario, seeds]


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kills the whole process group and waits: a check that was cut short may have children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


def _caught_by(output: str) -> str:
    """The first line that names a failing test or seed."""
    named = re.search(r"^(?:FAILED|ERROR) (.+)$", output, re.MULTILINE)
    return f"by {named.group(1)}" if named else _last_lines(output)


def _last_lines(output: str, count: int = 15) -> str:
    return "\n".join(output.rstrip().splitlines()[-count:])

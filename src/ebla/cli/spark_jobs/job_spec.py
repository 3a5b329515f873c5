"""What a command passes to the process that runs its Spark jobs."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import msgspec
import typer

from ebla.cli.command import OutputFlags
from ebla.cli.output import reporting_outcomes
from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.user_spark import UserSpark, spark_process_environment

SPEC_VARIABLE = "EBLA_JOB"
"""Not an argument: all users can see arguments, and the spec may contain a password."""
INTERRUPTED = 130


class SparkJobSpec(msgspec.Struct, frozen=True, kw_only=True):
    options: Mapping[str, str]
    settings: Mapping[str, str]
    table: str
    folder: str
    as_json: bool

    def show(self, value: object, text: str) -> None:
        OutputFlags(as_json=self.as_json).show(value, text)


S = TypeVar("S", bound=SparkJobSpec)


class ExportSpec(SparkJobSpec, frozen=True, kw_only=True):
    kind: FileKind
    pieces: int | None


class ImportSpec(SparkJobSpec, frozen=True, kw_only=True):
    kind: FileKind | None
    columns: tuple[str, ...]
    again: bool


def exec_spark_job(module: str, spec: SparkJobSpec, spark: UserSpark) -> NoReturn:
    """Replaces this process by the one that runs the jobs, which loads PySpark and owns the terminal."""
    environment = {**spark_process_environment(spark), SPEC_VARIABLE: msgspec.json.encode(spec).decode()}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module], environment)  # noqa: S606  # the arguments are our own


def run_job_process(kind: type[S], work: Callable[[S], None], *, is_change: bool) -> None:
    """The main function of that process."""
    # Removed from the environment, so that no child process has it.
    spec = msgspec.json.decode(os.environ.pop(SPEC_VARIABLE), type=kind)
    try:
        with reporting_outcomes(as_json=spec.as_json, is_change=is_change):
            work(spec)
    except typer.Exit as failed:
        sys.exit(failed.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; run the same command again to resume\n")
        sys.exit(INTERRUPTED)

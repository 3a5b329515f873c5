"""What a command passes to the process that runs its Spark jobs."""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn, TypeVar

import msgspec

from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.user_spark import UserSpark, spark_process_environment

SPEC_VARIABLE = "EBLA_JOB"
"""Not an argument: all users can see arguments, and the spec may contain a password."""
INTERRUPTED = 130

T = TypeVar("T")


class ExportSpec(msgspec.Struct, frozen=True, kw_only=True):
    options: Mapping[str, str]
    settings: Mapping[str, str]
    table: str
    folder: str
    kind: FileKind
    pieces: int | None
    as_json: bool


class ImportSpec(msgspec.Struct, frozen=True, kw_only=True):
    options: Mapping[str, str]
    settings: Mapping[str, str]
    table: str
    folder: str
    kind: FileKind | None
    columns: tuple[str, ...]
    again: bool
    as_json: bool


def exec_spark_job(module: str, spec: ExportSpec | ImportSpec, spark: UserSpark) -> NoReturn:
    """Replaces this process by the one that runs the jobs, which loads PySpark and owns the terminal."""
    environment = {**spark_process_environment(spark), SPEC_VARIABLE: msgspec.json.encode(spec).decode()}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module], environment)  # noqa: S606  # the arguments are our own


def take_job_spec(kind: type[T]) -> T:
    """Removes it from the environment, so that no child process has it."""
    return msgspec.json.decode(os.environ.pop(SPEC_VARIABLE), type=kind)

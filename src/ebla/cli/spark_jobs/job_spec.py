"""What a command hands to the process of its own in which its Spark jobs run."""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn, TypeVar

import msgspec

from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.user_spark import UserSpark, spark_process_environment

SPEC_VARIABLE = "EBLA_JOB"
"""Not an argument: those are for all to see, and a password may be in it."""
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


def exec_spark_job(module: str, wish: ExportSpec | ImportSpec, spark: UserSpark) -> NoReturn:
    """This process goes on as the one that runs the jobs: it has PySpark loaded, and a terminal to itself."""
    around = {**spark_process_environment(spark), SPEC_VARIABLE: msgspec.json.encode(wish).decode()}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module], around)  # noqa: S606  # the arguments are our own


def take_job_spec(kind: type[T]) -> T:
    """Taken away, so that no process below has it."""
    return msgspec.json.decode(os.environ.pop(SPEC_VARIABLE), type=kind)

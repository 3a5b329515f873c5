"""What a command hands to the process of its own in which its Spark jobs run."""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn, TypeVar

import msgspec

from ebla.cli.export_plan import FileKind
from ebla.cli.user_spark import UserSpark, surroundings

WISH_VARIABLE = "EBLA_JOB"
"""Not an argument: those are for all to see, and a password may be in it."""
INTERRUPTED = 130

T = TypeVar("T")


class ExportWish(msgspec.Struct, frozen=True):
    options: Mapping[str, str]
    settings: Mapping[str, str]
    table: str
    folder: str
    kind: FileKind
    pieces: int | None
    as_json: bool


class ImportWish(msgspec.Struct, frozen=True):
    options: Mapping[str, str]
    settings: Mapping[str, str]
    table: str
    folder: str
    kind: FileKind | None
    columns: tuple[str, ...]
    again: bool
    as_json: bool


def become(module: str, wish: ExportWish | ImportWish, spark: UserSpark) -> NoReturn:
    """This process goes on as the one that runs the jobs: it has PySpark loaded, and a terminal to itself."""
    around = {**surroundings(spark), WISH_VARIABLE: msgspec.json.encode(wish).decode()}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module], around)  # noqa: S606  # the arguments are our own


def take_wish(kind: type[T]) -> T:
    """Taken away, so that no process below has it."""
    return msgspec.json.decode(os.environ.pop(WISH_VARIABLE), type=kind)

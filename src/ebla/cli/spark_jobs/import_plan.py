"""The state of an import: which files are written, and which are not. A small file beside the folder. Pure.

Files are grouped into chunks. Each chunk is one write job with an id that the cluster remembers. A chunk that was
committed but not recorded here is not written again: the cluster knows that its job is done.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.state_file import StateRecord
from ebla.model.errors import InvalidRequest

CHUNK_BYTES = 1 << 30
HIDDEN = ("_", ".")
ENDINGS = {FileKind.PARQUET: (".parquet",), FileKind.CSV: (".csv", ".csv.gz")}


class InputFile(msgspec.Struct, frozen=True, order=True):
    name: str
    """Relative to the folder."""
    size_bytes: int


class ImportState(StateRecord, frozen=True, kw_only=True):
    FORMAT: ClassVar[int] = 1
    WHAT: ClassVar[str] = "the state file of an import"
    ADVICE: ClassVar[str] = "move it away"

    id: str
    table: str
    table_id: str
    kind: FileKind
    chunks: tuple[tuple[InputFile, ...], ...]
    done: tuple[int, ...] = ()

    def job(self, number: int) -> str:
        return f"import-{self.id}-{number}"

    @property
    def is_whole(self) -> bool:
        return len(self.done) == len(self.chunks)

    @property
    def left(self) -> tuple[int, ...]:
        return tuple(number for number in range(len(self.chunks)) if number not in self.done)

    def with_done(self, number: int) -> "ImportState":
        return msgspec.structs.replace(self, done=(*self.done, number))


def kind_of(names: Iterable[str], requested: FileKind | None, folder: str) -> FileKind:
    """The requested format, or else that of the files."""
    if requested is not None:
        return requested
    found = {kind for name in names for kind, endings in ENDINGS.items() if name.endswith(endings)}
    if len(found) == 1:
        return found.pop()
    what = "files of both kinds" if found else "neither .parquet nor .csv files"
    raise InvalidRequest(f"{folder} has {what}", advice="say which with --format")


def chosen_files(files: Iterable[InputFile], kind: FileKind, folder: str) -> list[InputFile]:
    """The files of this format, by name, without Spark's own hidden files."""
    fitting = sorted(
        one
        for one in files
        if one.name.endswith(ENDINGS[kind]) and not any(part.startswith(HIDDEN) for part in one.name.split("/"))
    )
    if not fitting:
        raise InvalidRequest(f"{folder} has no {kind} files", advice=f"they end in {', '.join(ENDINGS[kind])}")
    return fitting


def chunks_of(files: Sequence[InputFile], chunk_bytes: int = CHUNK_BYTES) -> tuple[tuple[InputFile, ...], ...]:
    """Groups adjacent files up to a size; a file is never split."""
    chunks: list[list[InputFile]] = []
    size = 0
    for one in files:
        if not chunks or size + one.size_bytes > chunk_bytes:
            chunks.append([])
            size = 0
        chunks[-1].append(one)
        size += one.size_bytes
    return tuple(map(tuple, chunks))


def check_same(found: ImportState, expected: ImportState) -> None:
    """An import resumes only with the same files: a chunk is identified by its job, not by its rows."""
    if found.table_id != expected.table_id:
        raise InvalidRequest(
            f"this folder was imported into a table {found.table} that has been dropped since",
            advice="start over with --again",
        )
    known = sorted(one for chunk in found.chunks for one in chunk)
    if known != sorted(one for chunk in expected.chunks for one in chunk):
        raise InvalidRequest(
            "the files are not the same as when the import started",
            advice="restore them to resume, or start over with --again, which writes all files once more",
        )


def check_columns(found: Sequence[str], known: Sequence[str], keys: Sequence[str]) -> None:
    """Columns are matched by name. Columns that the files lack keep their values."""
    twice = next((name for name in found if list(found).count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"the files have two columns {twice!r}")
    unknown = [name for name in found if name not in known]
    if unknown:
        raise InvalidRequest(
            f"the table has no column {', '.join(map(repr, unknown))}",
            advice=f"it has {', '.join(known)}; leave others out with --columns",
        )
    missing_keys = [name for name in keys if name not in found]
    if missing_keys:
        raise InvalidRequest(
            f"the files lack {', '.join(map(repr, missing_keys))} of the table's primary key",
            advice=f"a row is known by {', '.join(keys)}",
        )

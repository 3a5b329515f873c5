"""What an import has brought and what it still has to: a small file beside the folder it reads. Pure.

Files are put together to chunks, each of which is one write job with an id of its own that the cluster remembers. A
chunk that was committed though nobody noted it here is not written again: the cluster knows its job as done.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.state_format import StateRecord
from ebla.model.errors import InvalidRequest

CHUNK_BYTES = 1 << 30
HIDDEN = ("_", ".")
ENDINGS = {FileKind.PARQUET: (".parquet",), FileKind.CSV: (".csv", ".csv.gz")}


class InputFile(msgspec.Struct, frozen=True, order=True):
    name: str
    """Below the folder."""
    size_bytes: int


class ImportState(StateRecord, frozen=True, kw_only=True):
    FORMAT: ClassVar[int] = 1
    WHAT: ClassVar[str] = "the note of an import"
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


def kind_of(names: Iterable[str], asked: FileKind | None, folder: str) -> FileKind:
    """That of the files there, where it was not asked for."""
    if asked is not None:
        return asked
    found = {kind for name in names for kind, endings in ENDINGS.items() if name.endswith(endings)}
    if len(found) == 1:
        return found.pop()
    what = "files of both kinds" if found else "neither .parquet nor .csv files"
    raise InvalidRequest(f"{folder} has {what}", advice="say which with --format")


def chosen_files(files: Iterable[InputFile], kind: FileKind, folder: str) -> list[InputFile]:
    """Those of the kind, in the order of their names; none that begins as Spark's own notes do."""
    fitting = sorted(
        one
        for one in files
        if one.name.endswith(ENDINGS[kind]) and not any(part.startswith(HIDDEN) for part in one.name.split("/"))
    )
    if not fitting:
        raise InvalidRequest(f"{folder} has no {kind} files", advice=f"they end in {', '.join(ENDINGS[kind])}")
    return fitting


def chunks_of(files: Sequence[InputFile], chunk_bytes: int = CHUNK_BYTES) -> tuple[tuple[InputFile, ...], ...]:
    """Neighbours together up to a size; a file is never cut."""
    chunks: list[list[InputFile]] = []
    size = 0
    for one in files:
        if not chunks or size + one.size_bytes > chunk_bytes:
            chunks.append([])
            size = 0
        chunks[-1].append(one)
        size += one.size_bytes
    return tuple(map(tuple, chunks))


def check_same(found: ImportState, wanted: ImportState) -> None:
    """What was begun goes on only with the files it was begun with: a chunk is known by its job, not by its rows."""
    if found.table_id != wanted.table_id:
        raise InvalidRequest(
            f"an import into a table {found.table} that was dropped since is noted here",
            advice="begin anew with --again",
        )
    known = sorted(one for chunk in found.chunks for one in chunk)
    if known != sorted(one for chunk in wanted.chunks for one in chunk):
        raise InvalidRequest(
            "the files are not those that the import was begun with",
            advice="bring those back to go on, or begin anew with --again, which writes what is there once more",
        )


def check_columns(found: Sequence[str], known: Sequence[str], keys: Sequence[str]) -> None:
    """Columns are matched by name; those that the files do not have stay as they are."""
    twice = next((name for name in found if list(found).count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"the files have two columns {twice!r}")
    strangers = [name for name in found if name not in known]
    if strangers:
        raise InvalidRequest(
            f"the table has no column {', '.join(map(repr, strangers))}",
            advice=f"it has {', '.join(known)}; leave others out with --columns",
        )
    lacking = [name for name in keys if name not in found]
    if lacking:
        raise InvalidRequest(
            f"the files lack {', '.join(map(repr, lacking))} of the table's primary key",
            advice=f"a row is known by {', '.join(keys)}",
        )

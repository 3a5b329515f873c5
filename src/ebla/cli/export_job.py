"""The Spark jobs of `ebla export`, in a process of their own: one for each piece of the ring.

A piece is written to a hidden folder, its files are moved into place, and then it is noted in the manifest. Whoever is
killed in between leaves files that the manifest does not name, and the next run removes them.
"""

import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import typer
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from ebla.cli.csv_text import WRITING, as_texts
from ebla.cli.export_plan import (
    MANIFEST,
    Chunk,
    FileKind,
    Manifest,
    check_same,
    chunk_count,
    condition,
    cut,
    file_prefix,
    missing,
)
from ebla.cli.job_wish import INTERRUPTED, ExportWish, take_wish
from ebla.cli.note_file import replace
from ebla.cli.note_format import decode_note, encode_note
from ebla.cli.shown_jobs import counted
from ebla.cli.shown_rows import print_json
from ebla.cli.source_access import access_to, describe
from ebla.cli.spark_run import Shown, run_piece, session
from ebla.cli.telling import errors_told, outcomes_told
from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.source.contact import Contact
from ebla.wire.table_access import CLOSE_READ, OPEN_READ, CloseReadRequest, OpenReadRequest, ReadId

STAGING = ".ebla-piece"
ROWS = "rows"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main() -> None:
    with errors_told():
        wish = take_wish(ExportWish)
        with outcomes_told(as_json=wish.as_json, is_change=False):
            try:
                _tell(wish, _export(wish))
            except KeyboardInterrupt:
                sys.stderr.write("\ninterrupted; the same command goes on where it was\n")
                raise typer.Exit(INTERRUPTED) from None


def _export(wish: ExportWish) -> Manifest:
    folder = Path(wish.folder)
    schema = describe(wish.options, wish.table).schema
    manifest = begun(folder, Manifest(Manifest.FORMAT, wish.table, str(schema.id), wish.kind))
    left = missing(chunk.range for chunk in manifest.chunks)
    if not left:
        return manifest
    pieces = cut(left, wish.pieces or chunk_count(_size_bytes(wish.options, wish.table)))
    total = len(manifest.chunks) + len(pieces)
    done = len(manifest.chunks)
    if done:
        sys.stderr.write(f"goes on: {counted(done, 'piece')} of {total} are there\n")
    with session(wish.settings) as spark, Shown(f"export {wish.table}", total, done, quiet=wish.as_json) as shown:
        for within in pieces:
            chunk = run_piece(spark, f"export {wish.table}", _Piece(spark, wish, schema, within).write, shown)
            manifest = manifest.with_chunk(chunk)
            replace(folder / MANIFEST, encode_note(manifest))
            shown.piece_done(counted(chunk.rows, "row"))
    return manifest


def begun(folder: Path, wanted: Manifest) -> Manifest:
    """The manifest to go on with. A folder with other things in it is nobody's to write to."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MANIFEST
    if not path.exists():
        if any(folder.iterdir()):
            raise InvalidRequest(f"{folder} is not empty, and has no export in it", advice="name another folder")
        replace(path, encode_note(wanted))
        return wanted
    found = decode_note(Manifest, path.read_bytes(), str(path))
    check_same(found, wanted)
    _remove_unnamed(folder, found)
    return found


def _remove_unnamed(folder: Path, manifest: Manifest) -> None:
    named = {MANIFEST, *manifest.files}
    for path in folder.iterdir():
        if path.is_dir() and path.name == STAGING:
            shutil.rmtree(path)
        elif path.is_file() and path.name not in named and path.suffix[1:] in list(FileKind):
            path.unlink()


class _Piece:
    def __init__(self, spark: SparkSession, wish: ExportWish, schema: TableSchema, within: TokenRange) -> None:
        self._spark = spark
        self._wish = wish
        self._schema = schema
        self._within = within

    def write(self) -> Chunk:
        folder = Path(self._wish.folder)
        staging = folder / STAGING
        shutil.rmtree(staging, ignore_errors=True)
        seen = Observation(ROWS)
        frame = self._rows().observe(seen, fn.count(fn.lit(1)).alias(ROWS))
        if self._wish.kind is FileKind.CSV:
            as_texts(frame).write.options(**WRITING).csv(str(staging))
        else:
            frame.write.parquet(str(staging))
        names = self._move(staging, folder)
        shutil.rmtree(staging)
        return Chunk(self._within, names, int(seen.get[ROWS]))

    def _rows(self) -> DataFrame:
        reader = self._spark.read.format("ebla").options(**self._wish.options)
        keys = [column.name for column in self._schema.partition_key]
        return reader.option("where", condition(self._within, keys)).load(self._wish.table)

    def _move(self, staging: Path, folder: Path) -> tuple[str, ...]:
        parts = sorted(path for path in staging.iterdir() if path.name.startswith("part-"))
        names = [f"{file_prefix(self._within)}-{number:05}.{self._wish.kind}" for number in range(len(parts))]
        for path, name in zip(parts, names):
            path.replace(folder / name)
        return tuple(names)


def _size_bytes(options: Mapping[str, str], table: str) -> int:
    """About, as the nodes know it."""
    access = access_to(options, table)
    schema = describe(options, table).schema
    read = ReadId(uuid.uuid4())
    with Contact(access.contact) as contact:
        plan = contact.call(OPEN_READ, OpenReadRequest(read, schema.id, access.level), access.timeout_s)
        contact.call(CLOSE_READ, CloseReadRequest(read, schema.id), access.timeout_s)
    return sum(piece.size_bytes for piece in plan.pieces)


def _tell(wish: ExportWish, manifest: Manifest) -> None:
    size = sum((Path(wish.folder) / name).stat().st_size for name in manifest.files)
    if wish.as_json:
        print_json({"table": wish.table, "rows": manifest.rows, "files": len(manifest.files), "bytes": size})
    else:
        typer.echo(
            f"{counted(manifest.rows, 'row')} of {wish.table} in {counted(len(manifest.files), 'file')}, {size:,} bytes"
        )


if __name__ == "__main__":
    app()

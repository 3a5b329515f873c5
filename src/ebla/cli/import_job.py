"""The Spark jobs of `ebla import`, in a process of their own: one for each chunk of files."""

import sys
import uuid
from pathlib import Path

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from ebla.cli.csv_text import from_texts, quoted, read_texts
from ebla.cli.export_plan import FileKind
from ebla.cli.import_plan import (
    ImportState,
    InputFile,
    check_columns,
    check_same,
    chosen_files,
    chunks_of,
    kind_of,
)
from ebla.cli.job_wish import INTERRUPTED, ImportWish, take_wish
from ebla.cli.note_file import replace
from ebla.cli.note_format import decode_note, encode_note
from ebla.cli.shown_jobs import counted
from ebla.cli.shown_rows import print_json
from ebla.cli.source_access import describe
from ebla.cli.spark_run import Shown, run_piece, session
from ebla.cli.telling import errors_told, outcomes_told
from ebla.model.errors import NotFound
from ebla.model.schema import TableSchema
from ebla.source.type_mapping import spark_type

WRITING_ONLY = ("ttl", "nulls", "consistency")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main() -> None:
    with errors_told():
        wish = take_wish(ImportWish)
        with outcomes_told(as_json=wish.as_json):
            try:
                _import(wish)
            except KeyboardInterrupt:
                sys.stderr.write("\ninterrupted; the same command goes on where it was\n")
                raise typer.Exit(INTERRUPTED) from None


def _import(wish: ImportWish) -> None:
    contact = {name: value for name, value in wish.options.items() if name not in WRITING_ONLY}
    schema = describe(contact, wish.table).schema
    note = note_of(Path(wish.folder), wish.table)
    state = begun(note, planned(wish, schema), again=wish.again)
    if state.is_whole:
        _tell(wish, state, "was imported before; --again does it once more")
        return
    if state.done:
        sys.stderr.write(f"goes on: {counted(len(state.done), 'piece')} of {len(state.chunks)} are there\n")
    total, done = len(state.chunks), len(state.done)
    with session(wish.settings) as spark, Shown(f"import {wish.table}", total, done, quiet=wish.as_json) as shown:
        for number in state.left:
            chunk = _Chunk(spark, wish, schema, state)
            run_piece(spark, state.job(number), lambda number=number, chunk=chunk: chunk.write(number), shown)  # type: ignore[misc]  # bound early
            state = state.with_done(number)
            replace(note, encode_note(state))
            shown.piece_done(counted(len(state.chunks[number]), "file"))
    _tell(wish, state, "imported")


def planned(wish: ImportWish, schema: TableSchema) -> ImportState:
    folder = Path(wish.folder)
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}")
    files = [
        InputFile(str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    ]
    kind = kind_of((one.name for one in files), wish.kind, str(folder))
    chunks = chunks_of(chosen_files(files, kind, str(folder)))
    return ImportState(ImportState.FORMAT, uuid.uuid4().hex, wish.table, str(schema.id), kind, chunks)


def note_of(folder: Path, table: str) -> Path:
    """Beside the folder: what is in it may be read-only, and is somebody's data."""
    return folder.with_name(f"{folder.name}.import-{table}.json")


def begun(note: Path, wanted: ImportState, *, again: bool) -> ImportState:
    """The state to go on with. Noted before anything is written: a job whose name nobody knows is done again."""
    if note.exists() and not again:
        found = decode_note(ImportState, note.read_bytes(), str(note))
        check_same(found, wanted)
        return found
    replace(note, encode_note(wanted))
    return wanted


class _Chunk:
    def __init__(self, spark: SparkSession, wish: ImportWish, schema: TableSchema, state: ImportState) -> None:
        self._spark = spark
        self._wish = wish
        self._schema = schema
        self._state = state

    def write(self, number: int) -> None:
        frame = self._rows([str(Path(self._wish.folder, one.name)) for one in self._state.chunks[number]])
        writer = frame.write.format("ebla").options(**self._wish.options).option("job", self._state.job(number))
        writer.mode("append").save(self._wish.table)

    def _rows(self, paths: list[str]) -> DataFrame:
        is_csv = self._state.kind is FileKind.CSV
        reader = self._spark.read
        frame = read_texts(reader, paths) if is_csv else reader.parquet(*paths)
        if self._wish.columns:
            frame = frame.select(*(quoted(name) for name in self._wish.columns if name in frame.columns))
        check_columns(frame.columns, [column.name for column in self._schema.columns], primary_key(self._schema))
        if not is_csv:
            return frame
        kinds = [StructField(column.name, spark_type(column.type)) for column in self._schema.columns]
        return from_texts(frame, StructType(kinds))


def primary_key(schema: TableSchema) -> list[str]:
    return [column.name for column in (*schema.partition_key, *schema.clustering)]


def _tell(wish: ImportWish, state: ImportState, words: str) -> None:
    files = sum(len(chunk) for chunk in state.chunks)
    if wish.as_json:
        print_json({"table": wish.table, "files": files, "import": state.id, "words": words})
    else:
        typer.echo(f"{counted(files, 'file')} of {wish.folder} into {wish.table}: {words}")


if __name__ == "__main__":
    app()

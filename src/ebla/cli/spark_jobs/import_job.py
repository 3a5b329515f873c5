"""The Spark jobs of `ebla import`, in a process of their own: one for each chunk of files."""

import sys
import uuid
from pathlib import Path

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from ebla.cli.jobs.job_output import count_of
from ebla.cli.output import print_json, reporting_errors, reporting_outcomes
from ebla.cli.spark_jobs.csv_text import from_texts, quoted, read_texts
from ebla.cli.spark_jobs.export_plan import FileKind
from ebla.cli.spark_jobs.import_plan import (
    ImportState,
    InputFile,
    check_columns,
    check_same,
    chosen_files,
    chunks_of,
    kind_of,
)
from ebla.cli.spark_jobs.job_spec import INTERRUPTED, ImportSpec, take_job_spec
from ebla.cli.spark_jobs.source_options import describe
from ebla.cli.spark_jobs.spark_session import PieceProgress, run_spark_piece, session
from ebla.cli.spark_jobs.state_file import decode_state_record, encode_state_record, replace_file
from ebla.model.errors import NotFound
from ebla.model.schema import TableSchema
from ebla.source.spark_types import spark_type

WRITING_ONLY = ("ttl", "nulls", "consistency")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main() -> None:
    with reporting_errors():
        spec = take_job_spec(ImportSpec)
        with reporting_outcomes(as_json=spec.as_json):
            try:
                _import(spec)
            except KeyboardInterrupt:
                sys.stderr.write("\ninterrupted; run the same command again to resume\n")
                raise typer.Exit(INTERRUPTED) from None


def _import(spec: ImportSpec) -> None:
    contact = {name: value for name, value in spec.options.items() if name not in WRITING_ONLY}
    schema = describe(contact, spec.table).schema
    state_file = state_path(Path(spec.folder), spec.table)
    state = open_state(state_file, plan_import(spec, schema), again=spec.again)
    if state.is_whole:
        _print_summary(spec, state, "was imported before; --again imports it once more")
        return
    if state.done:
        sys.stderr.write(f"resuming: {count_of(len(state.done), 'piece')} of {len(state.chunks)} are there\n")
    total, done = len(state.chunks), len(state.done)
    with (
        session(spec.settings) as spark,
        PieceProgress(f"import {spec.table}", total, done, quiet=spec.as_json) as progress,
    ):
        for number in state.left:
            chunk = _Chunk(spark, spec, schema, state)
            run_spark_piece(spark, state.job(number), lambda number=number, chunk=chunk: chunk.write(number), progress)  # type: ignore[misc]  # bound early
            state = state.with_done(number)
            replace_file(state_file, encode_state_record(state))
            progress.piece_done(count_of(len(state.chunks[number]), "file"))
    _print_summary(spec, state, "imported")


def plan_import(spec: ImportSpec, schema: TableSchema) -> ImportState:
    folder = Path(spec.folder)
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}")
    files = [
        InputFile(str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    ]
    kind = kind_of((one.name for one in files), spec.kind, str(folder))
    chunks = chunks_of(chosen_files(files, kind, str(folder)))
    return ImportState(
        format=ImportState.FORMAT,
        id=uuid.uuid4().hex,
        table=spec.table,
        table_id=str(schema.id),
        kind=kind,
        chunks=chunks,
    )


def state_path(folder: Path, table: str) -> Path:
    """Beside the folder, which may be read-only and belongs to the user."""
    return folder.with_name(f"{folder.name}.import-{table}.json")


def open_state(state_file: Path, new_state: ImportState, *, again: bool) -> ImportState:
    """The state to continue with. It is saved before any write: a job with an unknown id would be repeated."""
    if state_file.exists() and not again:
        found = decode_state_record(ImportState, state_file.read_bytes(), str(state_file))
        check_same(found, new_state)
        return found
    replace_file(state_file, encode_state_record(new_state))
    return new_state


class _Chunk:
    def __init__(self, spark: SparkSession, spec: ImportSpec, schema: TableSchema, state: ImportState) -> None:
        self._spark = spark
        self._wish = spec
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


def _print_summary(spec: ImportSpec, state: ImportState, words: str) -> None:
    files = sum(len(chunk) for chunk in state.chunks)
    if spec.as_json:
        print_json({"table": spec.table, "files": files, "import": state.id, "words": words})
    else:
        typer.echo(f"{count_of(files, 'file')} of {spec.folder} into {spec.table}: {words}")


if __name__ == "__main__":
    app()

"""The Spark jobs of `ebla import`, in a process of their own: one for each chunk of files."""

import sys
import uuid
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from ebla.cli.jobs.job_output import count_of
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
from ebla.cli.spark_jobs.job_spec import ImportSpec, run_job_process
from ebla.cli.spark_jobs.source_options import describe
from ebla.cli.spark_jobs.spark_session import PieceProgress, run_spark_piece, session
from ebla.cli.spark_jobs.state_file import decode_state_record, encode_state_record, replace_file
from ebla.model.errors import NotFound
from ebla.model.schema import TableSchema
from ebla.source.spark_types import spark_type

WRITING_ONLY = ("ttl", "nulls", "consistency")


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
            write = partial(_write_chunk, spark, spec, schema, state, number)
            run_spark_piece(spark, state.job(number), write, progress)
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


def _write_chunk(spark: SparkSession, spec: ImportSpec, schema: TableSchema, state: ImportState, number: int) -> None:
    paths = [str(Path(spec.folder, one.name)) for one in state.chunks[number]]
    is_csv = state.kind is FileKind.CSV
    frame = read_texts(spark.read, paths) if is_csv else spark.read.parquet(*paths)
    if spec.columns:
        frame = frame.select(*(quoted(name) for name in spec.columns if name in frame.columns))
    keys = [column.name for column in (*schema.partition_key, *schema.clustering)]
    check_columns(frame.columns, [column.name for column in schema.columns], keys)
    if is_csv:
        kinds = [StructField(column.name, spark_type(column.type)) for column in schema.columns]
        frame = from_texts(frame, StructType(kinds))
    writer = frame.write.format("ebla").options(**spec.options).option("job", state.job(number))
    writer.mode("append").save(spec.table)


def _print_summary(spec: ImportSpec, state: ImportState, words: str) -> None:
    files = sum(len(chunk) for chunk in state.chunks)
    spec.show(
        {"table": spec.table, "files": files, "import": state.id, "words": words},
        f"{count_of(files, 'file')} of {spec.folder} into {spec.table}: {words}",
    )


if __name__ == "__main__":
    run_job_process(ImportSpec, _import, is_change=True)

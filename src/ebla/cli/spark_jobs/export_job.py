"""The Spark jobs of `ebla export`, in a process of their own: one for each piece of the ring.

A piece is written to a hidden folder, its files are moved into place, and then it is recorded in the manifest. A
process killed in between leaves files that the manifest does not name; the next run deletes them.
"""

import shutil
import sys
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as fn

from ebla.cli.jobs.job_output import count_of
from ebla.cli.spark_jobs.csv_text import WRITING, as_texts
from ebla.cli.spark_jobs.export_plan import (
    MANIFEST,
    ExportChunk,
    ExportManifest,
    FileKind,
    check_same,
    chunk_count,
    condition,
    file_prefix,
    missing_ranges,
    split_ranges,
)
from ebla.cli.spark_jobs.job_spec import ExportSpec, run_job_process
from ebla.cli.spark_jobs.source_options import describe, table_access_options
from ebla.cli.spark_jobs.spark_session import PieceProgress, run_spark_piece, session
from ebla.cli.spark_jobs.state_file import decode_state_record, encode_state_record, replace_file
from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.source.contact_points import CqlClient
from ebla.wire.table_calls import CLOSE_READ, OPEN_READ, CloseReadRequest, OpenReadRequest, ReadId

STAGING = ".ebla-piece"
ROWS = "rows"


def _run(spec: ExportSpec) -> None:
    _print_summary(spec, _export(spec))


def _export(spec: ExportSpec) -> ExportManifest:
    folder = Path(spec.folder)
    schema = describe(spec.options, spec.table).schema
    manifest = open_manifest(
        folder, ExportManifest(format=ExportManifest.FORMAT, table=spec.table, table_id=str(schema.id), kind=spec.kind)
    )
    left = missing_ranges(chunk.range for chunk in manifest.chunks)
    if not left:
        return manifest
    pieces = split_ranges(left, spec.pieces or chunk_count(_size_bytes(spec.options, spec.table)))
    total = len(manifest.chunks) + len(pieces)
    done = len(manifest.chunks)
    if done:
        sys.stderr.write(f"resuming: {count_of(done, 'piece')} of {total} are there\n")
    with (
        session(spec.settings) as spark,
        PieceProgress(f"export {spec.table}", total, done, quiet=spec.as_json) as progress,
    ):
        for token_range in pieces:
            write = partial(_write_piece, spark, spec, schema, token_range)
            chunk = run_spark_piece(spark, f"export {spec.table}", write, progress)
            manifest = manifest.with_chunk(chunk)
            replace_file(folder / MANIFEST, encode_state_record(manifest))
            progress.piece_done(count_of(chunk.rows, "row"))
    return manifest


def open_manifest(folder: Path, new_manifest: ExportManifest) -> ExportManifest:
    """The manifest to continue with. Refuses a folder that has other things in it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MANIFEST
    if not path.exists():
        if any(folder.iterdir()):
            raise InvalidRequest(f"{folder} is not empty, and has no export in it", advice="name another folder")
        replace_file(path, encode_state_record(new_manifest))
        return new_manifest
    found = decode_state_record(ExportManifest, path.read_bytes(), str(path))
    check_same(found, new_manifest)
    _remove_unnamed(folder, found)
    return found


def _remove_unnamed(folder: Path, manifest: ExportManifest) -> None:
    named = {MANIFEST, *manifest.files}
    for path in folder.iterdir():
        if path.is_dir() and path.name == STAGING:
            shutil.rmtree(path)
        elif path.is_file() and path.name not in named and path.suffix[1:] in list(FileKind):
            path.unlink()


def _write_piece(spark: SparkSession, spec: ExportSpec, schema: TableSchema, token_range: TokenRange) -> ExportChunk:
    reader = spark.read.format("ebla").options(**spec.options)
    keys = [column.name for column in schema.partition_key]
    rows = reader.option("where", condition(token_range, keys)).load(spec.table)
    folder = Path(spec.folder)
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    seen = Observation(ROWS)
    frame = rows.observe(seen, fn.count(fn.lit(1)).alias(ROWS))
    if spec.kind is FileKind.CSV:
        as_texts(frame).write.options(**WRITING).csv(str(staging))
    else:
        frame.write.parquet(str(staging))
    parts = sorted(path for path in staging.iterdir() if path.name.startswith("part-"))
    names = tuple(f"{file_prefix(token_range)}-{number:05}.{spec.kind}" for number in range(len(parts)))
    for path, name in zip(parts, names):
        path.replace(folder / name)
    shutil.rmtree(staging)
    return ExportChunk(token_range, names, int(seen.get[ROWS]))


def _size_bytes(options: Mapping[str, str], table: str) -> int:
    """The approximate size, from the nodes."""
    access = table_access_options(options, table)
    schema = describe(options, table).schema
    read = ReadId(uuid.uuid4())
    with CqlClient(access.contact) as contact:
        plan = contact.call(
            OPEN_READ, OpenReadRequest(read=read, table=schema.id, level=access.level), access.timeout_s
        )
        contact.call(CLOSE_READ, CloseReadRequest(read, schema.id), access.timeout_s)
    return sum(piece.size_bytes for piece in plan.pieces)


def _print_summary(spec: ExportSpec, manifest: ExportManifest) -> None:
    size = sum((Path(spec.folder) / name).stat().st_size for name in manifest.files)
    rows, files = count_of(manifest.rows, "row"), count_of(len(manifest.files), "file")
    spec.show(
        {"table": spec.table, "rows": manifest.rows, "files": len(manifest.files), "bytes": size},
        f"{rows} of {spec.table} in {files}, {size:,} bytes",
    )


if __name__ == "__main__":
    run_job_process(ExportSpec, _run, is_change=False)

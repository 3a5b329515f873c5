"""`ebla store …`: inspects the files of a stopped node or of a checkpoint."""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ebla.cli.flags import JsonFlag, VerboseFlag
from ebla.cli.output import print_table, reporting_errors
from ebla.control.group0.join_state import JoinStateFile
from ebla.model.errors import InvalidRequest
from ebla.runtime import file_lock
from ebla.runtime.data_folder import DataFolder
from ebla.runtime.file_disk import FileDisk
from ebla.storage.inspection.layer_report import (
    DiscoveredLayers,
    LayerCheck,
    LayerFactsReport,
    LayerLocation,
    LayerReport,
    dump_rows,
    find_layers,
    inspect_layer,
    verify_layer,
)
from ebla.storage.inspection.row_dump import RowDump
from ebla.storage.layers.rocks_engine import RocksEngine

HELP = """
Inspect the files of a stopped node, of one of its shards, or of a checkpoint. Nothing is changed.

  ebla store inspect data/node1              its stacks and layers, their sizes and timestamps
  ebla store verify data/node1/shard-0       read everything and report what cannot be read
  ebla store dump data/node1 --key alice     the rows of a partition, with their layers

Writes that were not flushed when the node stopped are in its commit log, and are not shown.
"""

app = typer.Typer(name="store", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a stopped node, a shard, a checkpoint or a layer.")]

WIDTH_ELSEWHERE = 1000
"""For a file or pipe, where lines need no wrapping."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a command works with."""

    disk: FileDisk
    engine: RocksEngine
    found: DiscoveredLayers


@app.command()
def inspect(folder: Folder, verbose: VerboseFlag = False, as_json: JsonFlag = False) -> None:
    """Show stacks and layers: sizes, timestamps, rows and their kinds. The exit status is 1 if something is damaged."""
    with reporting_errors():
        reports, problems = _run(folder, _inspect_all)
        if as_json:
            _print_json(reports)
        else:
            _print_reports(reports, folder, verbose=verbose)
    raise typer.Exit(1 if problems or any(report.problem for report in reports) else 0)


@app.command()
def verify(folder: Folder, as_json: JsonFlag = False) -> None:
    """Read every row of every layer. The exit status is 1 if something cannot be read or is corrupt."""
    with reporting_errors():
        checks, problems = _run(folder, _verify_all)
        if as_json:
            _print_json(checks)
        else:
            print_table(("layer", "rows read", "result"), _check_rows(checks, folder))
    raise typer.Exit(0 if not problems and all(check.is_sound for check in checks) else 1)


@app.command()
def dump(
    folder: Folder,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Only this partition; columns separated by commas, or serialised as 0x…"
        ),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="KEYSPACE.NAME", help="Only this table.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most this many rows.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """Show stored rows, each with its layer; versions of a row follow each other.

    Without a manifest beside the layers, columns are numbered and keys are text.
    """
    with reporting_errors():

        async def find(opened: _Opened) -> list[RowDump]:
            layers = [layer for layer in opened.found.layers if table is None or _table_of(layer) == table]
            return await dump_rows(opened.engine, opened.disk, layers, key, limit)

        rows, _ = _run(folder, find)
        if as_json:
            _print_json(rows)
        else:
            _print_dump(rows, folder)
    raise typer.Exit(0 if rows or key is None else 1)


async def _inspect_all(opened: _Opened) -> list[LayerReport]:
    reports = [await inspect_layer(opened.engine, opened.disk, layer) for layer in opened.found.layers]
    return [
        msgspec.structs.replace(report, incarnation=await _incarnation(opened.disk, report.folder))
        if report.store
        else report
        for report in reports
    ]


async def _incarnation(disk: FileDisk, layer: str) -> int | None:
    """From the mark of the node, two folders above those of the layers of a shard."""
    node = Path(layer).parents[2]
    mark = await JoinStateFile(disk, f"{DataFolder(node).group0}-mark").load()
    return mark.incarnation or None


async def _verify_all(opened: _Opened) -> list[LayerCheck]:
    return [await verify_layer(opened.engine, opened.disk, layer) for layer in opened.found.layers]


def _run(folder: Path, work: Callable[[_Opened], Coroutine[Any, Any, T]]) -> tuple[T, list[str]]:
    """The result, and the problems found, which were printed."""
    where = str(folder.absolute())
    _check_stopped(folder.absolute())
    disk = FileDisk()

    async def find_and_work(engine: RocksEngine) -> tuple[T, list[str]]:
        found = await find_layers(disk, where)
        return await work(_Opened(disk, engine, found)), found.problems

    try:
        with tempfile.TemporaryDirectory(prefix="ebla-store-") as notes:
            result = asyncio.run(find_and_work(RocksEngine(disk, info_log_folder=notes)))
    finally:
        disk.close()
    for problem in result[1]:
        sys.stderr.write(f"ebla: {problem}\n")
    return result


def _table_of(layer: LayerLocation) -> str:
    return "" if layer.schema is None else layer.schema.full_name


def _check_stopped(folder: Path) -> None:
    """A running node changes its files while they are read, so the output would be meaningless."""
    for above in (folder, *folder.parents):
        held = file_lock.find_held_lock(above / "run")
        if held is not None:
            raise InvalidRequest(f"a node runs in {above} ({held.message})", advice="stop it, or inspect a checkpoint")


def _print_json(found: Sequence[msgspec.Struct]) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")


def _print_reports(reports: Sequence[LayerReport], folder: Path, *, verbose: bool) -> None:
    names = ("stack", "table", "tokens", "layer", "role", "size", "files", "rows", "timestamps (µs)", "holds")
    less_important = ("timestamps (µs)", "tokens", "stack", "files", "role", "table")
    rows = [_report_row(report, folder) for report in reports]
    print_table(names, rows, less_important=() if verbose else less_important)
    stores = dict.fromkeys((report.store, report.log, report.incarnation) for report in reports if report.store)
    for store, log, incarnation in stores:
        typer.echo(f"store {store}, commit log {log}, incarnation {incarnation or 'unknown'}")


def _report_row(report: LayerReport, folder: Path) -> tuple[str, ...]:
    facts = report.facts
    tokens = "" if report.tokens is None else f"{report.tokens.start} … {report.tokens.end}"
    span = f"{facts.least_us} … {facts.greatest_us}" if facts.rows else "–"
    figures = (str(report.size_bytes), str(report.files), str(facts.rows), span, report.problem or _shapes(facts))
    return (report.stack, report.table, tokens, _short(report.folder, folder), report.role.value, *figures)


def _check_rows(checks: Sequence[LayerCheck], folder: Path) -> list[list[str]]:
    rows = []
    for check in checks:
        problems = [check.problem] if check.problem else []
        problems += [f"tokens {part.tokens.start} … {part.tokens.end}: {part.problem}" for part in check.damaged]
        rows.append([_short(check.folder, folder), str(check.rows), "; ".join(problems) or "sound"])
    return rows


def _print_dump(rows: Sequence[RowDump], folder: Path) -> None:
    """Keys and values may have any length, so they wrap in a terminal. They are printed as they are, not as markup."""
    table = Table(box=None, pad_edge=False)
    for name in ("token", "partition key", "kind", "clustering", "layer", "content"):
        table.add_column(name, overflow="fold")
    for row in rows:
        place = (str(row.token), row.partition_key, row.kind, row.clustering, _short(row.layer, folder))
        table.add_row(*place, "\n".join(_content_lines(row)))
    Console(width=None if sys.stdout.isatty() else WIDTH_ELSEWHERE, markup=False, highlight=False).print(table)


def _content_lines(row: RowDump) -> list[str]:
    lines = [] if row.marker_us is None else [f"marker @{row.marker_us}"]
    lines += [f"{one.what} deleted @{one.timestamp_us}" for one in row.deletions]
    for cell in row.cells:
        name = f"{'static ' if cell.static else ''}{cell.column}" + ("" if cell.path is None else f"[{cell.path}]")
        value = "deleted" if cell.value is None else cell.value
        lifetime = f" ttl {cell.ttl_s} s until {cell.at_s}" if cell.ttl_s else ""
        lines.append(f"{name} = {value} @{cell.timestamp_us}{lifetime}")
    return lines


def _shapes(facts: LayerFactsReport) -> str:
    if not facts.rows:
        return "nothing"
    flags = (
        ("plain rows only" if facts.all_plain else "rows of any shape", True),
        ("partition heads", facts.has_heads),
        ("tombstones", facts.has_tombstones),
        ("expiring cells", facts.has_expiring),
    )
    return ", ".join(name for name, there in flags if there)


def _short(layer: str, folder: Path) -> str:
    inside = layer.removeprefix(str(folder.absolute())).lstrip("/")
    return inside or "."

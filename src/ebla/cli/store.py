"""`ebla store …`: look into the files of a stopped node or of a checkpoint."""

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

from ebla.cli.telling import errors_told
from ebla.model.errors import InvalidRequest
from ebla.runtime import file_lock
from ebla.runtime.file_disk import FileDisk
from ebla.storage.inspect import (
    LayerCheck,
    LayerReport,
    ShownFacts,
    dump_rows,
    find_layers,
    inspect_layer,
    verify_layer,
)
from ebla.storage.rocks import RocksEngine, RocksLimits
from ebla.storage.shown_rows import ShownRow

HELP = """
The files of a stopped node, of one of its shards, or of a checkpoint. Nothing in them is changed.

  ebla store inspect data/node1              its layers, their sizes and timestamps
  ebla store verify data/node1/shard-0       read everything and say what cannot be read
  ebla store dump data/node1 --key alice     the rows of a partition, with the layers they stand in
"""

app = typer.Typer(name="store", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a stopped node, a shard, a checkpoint or a layer.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

WIDTH_ELSEWHERE = 1000
"""Of a file or pipe, where nothing needs folding."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a command works with."""

    disk: FileDisk
    engine: RocksEngine
    folder: str
    layers: list[str]


@app.command()
def inspect(folder: Folder, as_json: JsonFlag = False) -> None:
    """Show the layers: sizes, timestamps, rows and which shapes of rows they hold. Exit status 1 if one is damaged."""
    with errors_told():
        reports = _run(folder, _inspect_all)
        _print(reports, as_json=as_json, table=_report_table(reports, folder))
    raise typer.Exit(1 if any(report.problem for report in reports) else 0)


@app.command()
def verify(folder: Folder, as_json: JsonFlag = False) -> None:
    """Read every row of every layer. Exit status 1 if something cannot be read or is not what was written."""
    with errors_told():
        checks = _run(folder, _verify_all)
        _print(checks, as_json=as_json, table=_check_table(checks, folder))
    raise typer.Exit(0 if all(check.is_sound for check in checks) else 1)


@app.command()
def dump(
    folder: Folder,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Only this partition: text, or its serialised bytes as 0x…"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many rows.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """Show stored rows, each with the layer it stands in; versions of a row stand one below the other.

    Columns have numbers here: their names are in the cluster's schema, not in the files.
    """
    with errors_told():
        partition_key = None if key is None else _key_bytes(key)

        async def find(opened: _Opened) -> list[ShownRow]:
            return await dump_rows(opened.engine, opened.layers, partition_key, limit)

        rows = _run(folder, find)
        _print(rows, as_json=as_json, table=_row_table(rows, folder))
    raise typer.Exit(0 if rows or key is None else 1)


async def _inspect_all(opened: _Opened) -> list[LayerReport]:
    return [await inspect_layer(opened.engine, opened.disk, layer) for layer in opened.layers]


async def _verify_all(opened: _Opened) -> list[LayerCheck]:
    return [await verify_layer(opened.engine, layer) for layer in opened.layers]


def _run(folder: Path, work: Callable[[_Opened], Coroutine[Any, Any, T]]) -> T:
    _check_stopped(folder.absolute())
    disk = FileDisk()
    try:
        with tempfile.TemporaryDirectory(prefix="ebla-store-") as notes:
            engine = RocksEngine(disk, RocksLimits(info_log_folder=notes))
            where = str(folder.absolute())
            return asyncio.run(work(_Opened(disk, engine, where, find_layers(disk, where))))
    finally:
        disk.close()


def _check_stopped(folder: Path) -> None:
    """A running node changes its files while they are read, and what is read then tells nothing."""
    for above in (folder, *folder.parents):
        held = file_lock.held_in(above / "run")
        if held is not None:
            raise InvalidRequest(f"a node runs in {above} ({held.message})", advice="stop it, or look at a checkpoint")


def _key_bytes(text: str) -> bytes:
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError as failure:
        raise InvalidRequest(f"{text} is no hexadecimal number: {failure}") from failure


def _print(found: Sequence[msgspec.Struct], *, as_json: bool, table: Table) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        width = None if sys.stdout.isatty() else WIDTH_ELSEWHERE
        # What people stored is shown as it is, not read as markup.
        Console(width=width, markup=False, highlight=False).print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _report_table(reports: Sequence[LayerReport], folder: Path) -> Table:
    table = _table("layer", "size", "files", "rows", "timestamps (µs)", "holds")
    for report in reports:
        facts = report.facts
        span = f"{facts.least_us} … {facts.greatest_us}" if facts.rows else "–"
        holds = report.problem or _shapes(facts)
        cells = (str(report.size_bytes), str(report.files), str(facts.rows), span, holds)
        table.add_row(_short(report.folder, folder), *cells)
    return table


def _check_table(checks: Sequence[LayerCheck], folder: Path) -> Table:
    table = _table("layer", "rows read", "result")
    for check in checks:
        problems = [check.problem] if check.problem else []
        problems += [f"tokens {part.tokens.start} … {part.tokens.end}: {part.problem}" for part in check.damaged]
        table.add_row(_short(check.folder, folder), str(check.rows), "\n".join(problems) or "sound")
    return table


def _row_table(rows: Sequence[ShownRow], folder: Path) -> Table:
    table = _table("token", "partition key", "kind", "clustering", "layer", "content")
    for row in rows:
        name = row.kind.name.lower().replace("_", " ")
        place = (str(row.token), row.partition_key, name, row.clustering, _short(row.layer, folder))
        table.add_row(*place, "\n".join(_content_lines(row)))
    return table


def _content_lines(row: ShownRow) -> list[str]:
    lines = [] if row.marker_us is None else [f"marker @{row.marker_us}"]
    lines += [f"{one.what} deleted @{one.timestamp_us}" for one in row.deletions]
    for cell in row.cells:
        name = f"{'static ' if cell.static else ''}#{cell.column}" + ("" if cell.path is None else f"[{cell.path}]")
        value = "deleted" if cell.value is None else cell.value
        lifetime = f" ttl {cell.ttl_s} s until {cell.at_s}" if cell.ttl_s else ""
        lines.append(f"{name} = {value} @{cell.timestamp_us}{lifetime}")
    return lines


def _shapes(facts: ShownFacts) -> str:
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

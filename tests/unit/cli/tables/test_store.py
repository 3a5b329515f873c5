"""`ebla store inspect|verify|dump` on real layers: intact, damaged, or of a running node; nothing is changed."""

import asyncio
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.control.group0.join_state import JoinState
from ebla.journal.checked_file import replace_file
from ebla.model.cql_types import MapType, Scalar, ScalarType
from ebla.model.identity import StoreId, TableId
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.token import WHOLE_RING, composite_key, token_of
from ebla.runtime import file_lock
from ebla.runtime.file_disk import FileDisk
from ebla.storage.codec.key_codec import encode_clustering, head_key, partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_head, encode_row
from ebla.storage.inspection.row_dump import check_stored_row
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    LayerId,
    ShardManifest,
    StackEntry,
    layer_folder,
    read_manifest,
    save_manifest,
    with_live_files,
)

LAYOUT = (2, 3)
INCARNATION = Incarnation(77)
AT_US = 1_700_000_000_000_000


def prefix(name: str) -> bytes:
    return partition_prefix(token_of(name.encode()), name.encode())


def plain(name: str, text: str, at_us: int = AT_US) -> Item:
    row = Row(
        marker=RowMarker(at_us),
        deletion=None,
        cells={2: Cell(timestamp_us=at_us, value=text.encode()), 3: Cell(timestamp_us=at_us, value=b"\xff\x00")},
    )
    return row_key(prefix(name), b"\x01"), encode_row(row, 1, LAYOUT)


def odd(name: str) -> list[Item]:
    """A partition head and a row with everything a row can have."""
    ranges = (RangeDeletion(b"\x05", b"\x07", Deletion(AT_US + 1, 60)), RangeDeletion(b"\x08", None, Deletion(7, 60)))
    head = PartitionHead(Deletion(AT_US - 9, 50), ranges, Row(cells={9: Cell(timestamp_us=AT_US, value=b"shared")}))
    cells = {
        2: Cell(timestamp_us=AT_US, value=None, ttl_s=0, at_s=70),
        3: Cell(timestamp_us=AT_US, value=b"soon gone", ttl_s=30, at_s=99),
    }
    row = Row(
        marker=None,
        deletion=Deletion(AT_US - 5, 70),
        cells=cells,
        collections={4: CollectionCells(Deletion(AT_US - 1, 70), {b"k": Cell(timestamp_us=AT_US, value=b"v")})},
    )
    return [
        (head_key(prefix(name)), encode_head(head, 1)),
        (row_key(prefix(name), b"\x01"), encode_row(row, 1, LAYOUT)),
    ]


def build(folder: Path, items: list[Item], facts: LayerFacts | None = None) -> None:
    disk = FileDisk()
    disk.make_folder(str(folder.parent))
    if facts is None:
        facts = NO_FACTS
        for item in items:
            facts = facts.widened(check_stored_row(item))
    asyncio.run(build_layer(RocksEngine(disk), str(folder), sorted(items), facts))
    disk.close()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Two layers of one shard: both have alice's row."""
    layers = tmp_path / "node1" / "shard-0" / "layers"
    build(layers / "base", [plain("alice", "old"), plain("bob", "only"), *odd("carol")])
    build(layers / "live", [plain("alice", "new", AT_US + 5)])
    return tmp_path / "node1"


TABLE = new_schema(
    TableId(uuid.UUID(int=5)),
    "shop",
    "orders",
    (
        Column(name="customer", type=ScalarType(Scalar.TEXT), kind=ColumnKind.PARTITION_KEY),
        Column(name="year", type=ScalarType(Scalar.INT), kind=ColumnKind.PARTITION_KEY, position=1),
        Column(name="number", type=ScalarType(Scalar.INT), kind=ColumnKind.CLUSTERING, descending=True),
        Column(name="limits", type=MapType(ScalarType(Scalar.TEXT), ScalarType(Scalar.INT)), kind=ColumnKind.REGULAR),
        Column(name="price", type=ScalarType(Scalar.DOUBLE), kind=ColumnKind.REGULAR),
    ),
)


def order(customer: str, year: int, row: Row) -> Item:
    key = composite_key([customer.encode(), year.to_bytes(4)])
    clustering = encode_clustering(TABLE.clustering, [(7).to_bytes(4)])
    return row_key(partition_prefix(token_of(key), key), clustering), encode_row(row, 1, TABLE.layouts[0])


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """One stack of a table with all kinds of columns, a live layer that was never flushed, and a stray folder."""
    folder = tmp_path / "shard-0"
    price, limits = TABLE.column("price").number, TABLE.column("limits").number
    old = order(
        "alice",
        2024,
        Row(
            marker=RowMarker(AT_US),
            deletion=None,
            cells={price: Cell(timestamp_us=AT_US, value=struct.pack(">d", 2.5))},
        ),
    )
    element = CollectionCells(None, {b"day": Cell(timestamp_us=AT_US + 1, value=(12).to_bytes(4))})
    new = order("alice", 2024, Row(marker=None, deletion=None, cells={}, collections={limits: element}))
    build(Path(layer_folder(str(folder), INCARNATION, LayerId(1))), [old])
    build(Path(layer_folder(str(folder), INCARNATION, LayerId(2))), [new])
    build(Path(layer_folder(str(folder), INCARNATION, LayerId(9))), [old])
    bases = (
        LayerEntry(id=LayerId(1), range=WHOLE_RING),
        LayerEntry(id=LayerId(2), range=WHOLE_RING, damage="a bad block"),
    )
    stack = StackEntry(
        incarnation=INCARNATION,
        table=TABLE.id,
        range=WHOLE_RING,
        live=LayerEntry(id=LayerId(3), range=WHOLE_RING),
        bases=bases,
    )
    disk = FileDisk()
    asyncio.run(
        save_manifest(disk, str(folder), ShardManifest(format=1, generation=4, tables=(TABLE,), stacks=(stack,)))
    )
    disk.close()
    return folder


def test_inspect_shows_stacks_by_their_manifest(shard: Path) -> None:
    first, second, live, stray = ask_json("inspect", shard, status=1)
    assert [report["role"] for report in (first, second, live, stray)] == ["base", "base", "live", "stray"]
    assert {report["table"] for report in (first, second, live)} == {"shop.orders"}
    assert {report["stack"] for report in (first, second, live)} == {f"{INCARNATION:016x}"}
    assert second["problem"] == "a bad block"
    assert (live["files"], live["facts"]["rows"], live["problem"]) == (0, 0, "")
    assert "shop.orders" in ask("inspect", shard, status=1)
    assert ask_json("inspect", first["folder"]) == [first]
    assert [check["rows"] for check in ask_json("verify", shard)] == [1, 1, 0, 1]


def test_inspect_shows_the_ids_of_a_store(shard: Path) -> None:
    async def give_ids(disk: FileDisk) -> None:
        manifest = await read_manifest(disk, str(shard))
        assert manifest is not None
        store = StoreId(uuid.UUID(int=7))
        await save_manifest(disk, str(shard), msgspec.structs.replace(manifest, store=store, log_id=9))
        mark = msgspec.msgpack.encode(JoinState(incarnation=5))
        await replace_file(disk, str(shard.with_name("group0-mark")), mark)

    disk = FileDisk()
    asyncio.run(give_ids(disk))
    disk.close()
    first, *_, stray = ask_json("inspect", shard.parent, status=1)
    assert (first["store"], first["log"], first["incarnation"]) == (str(uuid.UUID(int=7)), f"{9:016x}", 5)
    assert (stray["store"], stray["incarnation"]) == ("", None)
    assert f"store {uuid.UUID(int=7)}, commit log {9:016x}, incarnation 5" in ask("inspect", shard, status=1)


def test_a_live_layer_whose_files_are_gone_is_told(shard: Path) -> None:
    disk = FileDisk()
    manifest = asyncio.run(read_manifest(disk, str(shard)))
    assert manifest is not None
    asyncio.run(save_manifest(disk, str(shard), with_live_files(manifest, {INCARNATION})))
    disk.close()
    assert "its folder is missing" in ask_json("inspect", shard, status=1)[2]["problem"]
    assert "its folder is missing" in ask_json("verify", shard, status=1)[2]["problem"]


def test_dump_knows_the_columns_of_a_table(shard: Path) -> None:
    old, new, _stray = ask_json("dump", shard)
    assert (old["partition_key"], old["clustering"]) == ("alice,2024", "7")
    assert [(cell["column"], cell["value"]) for cell in old["cells"]] == [("price", "2.5")]
    assert [(cell["column"], cell["path"], cell["value"]) for cell in new["cells"]] == [("limits", "day", "12")]
    assert ask_json("dump", shard, "--key", "alice,2024", "--table", "shop.orders") == [old, new]
    assert ask_json("dump", shard, "--table", "shop.others") == []
    assert ask_json("dump", shard, "--key", "alice,2025", status=1) == []
    wrong = ask("dump", shard, "--key", "alice", "--table", "shop.orders", status=1)
    assert "has 2 columns: customer, year" in wrong
    assert "is not a int for year" in ask("dump", shard, "--key", "alice,x", "--table", "shop.orders", status=1)


def test_a_damaged_manifest_is_told_and_the_layers_are_shown(shard: Path) -> None:
    content = bytearray((shard / "manifest").read_bytes())
    content[-20] ^= 1
    (shard / "manifest").write_bytes(content)
    result = CliRunner().invoke(app, ["store", "inspect", str(shard), "--json"])
    assert result.exit_code == 1
    assert "is damaged at offset" in result.stderr
    assert [report["role"] for report in json.loads(result.stdout)] == ["lone"] * 3


def ask(*arguments: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["store", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def ask_json(*arguments: str | Path, status: int = 0) -> Any:
    return json.loads(ask(*arguments, "--json", status=status))


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def damage(layer: Path) -> None:
    largest = max(layer.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)


def test_inspect_shows_layers_and_their_facts(node: Path) -> None:
    found = {Path(report["folder"]).name: report for report in ask_json("inspect", node)}
    assert list(found["live"]["facts"].values()) == [AT_US + 5, AT_US + 5, 1, False, False, False, True]
    assert list(found["base"]["facts"].values()) == [7, AT_US + 1, 4, True, True, True, False]
    assert found["base"]["size_bytes"] > 0
    text = ask("inspect", node / "shard-0" / "layers" / "base")
    assert f"7 … {AT_US + 1}" in text
    assert "partition heads, tombstones, expiring cells" in text


def test_dump_shows_a_key_with_its_layers(node: Path) -> None:
    base, live = ask_json("dump", node, "--key", "alice")
    assert [Path(row["layer"]).name for row in (base, live)] == ["base", "live"]
    assert base["token"] == live["token"] == token_of(b"alice")
    assert [cell["value"] for cell in base["cells"]] == ["old", "0xff00"]
    assert [cell["timestamp_us"] for cell in live["cells"]] == [AT_US + 5] * 2
    assert (base["marker_us"], live["marker_us"]) == (AT_US, AT_US + 5)
    assert ask_json("dump", node, "--key", "0x" + b"bob".hex())[0]["partition_key"] == "bob"
    assert "#0 = old" in ask("dump", node, "--key", "alice")


def test_dump_shows_every_shape(node: Path) -> None:
    head, row = ask_json("dump", node, "--key", "carol")
    assert [one["what"] for one in head["deletions"]] == [
        "partition", "rows from 0x05 up to 0x07", "rows from 0x08 up to the end",
    ]  # fmt: skip
    assert head["cells"][0]["static"]
    assert [one["what"] for one in row["deletions"]] == ["row", "collection #4"]
    assert [(cell["column"], cell["value"], cell["path"]) for cell in row["cells"]] == [
        ("#2", None, None), ("#3", "soon gone", None), ("#4", "v", "0x6b"),
    ]  # fmt: skip
    text = ask("dump", node, "--key", "carol")
    for words in ("partition deleted", "static #9 = shared", "#2 = deleted", "ttl 30 s until 99", "#4[0x6b] = v"):
        assert words in text


def test_dump_is_in_order_and_bounded(node: Path) -> None:
    rows = ask_json("dump", node)
    assert [row["token"] for row in rows] == sorted(row["token"] for row in rows)
    assert len(rows) == 5
    assert ask_json("dump", node, "--limit", "2") == rows[:2]
    assert ask_json("dump", node, "--key", "nobody", status=1) == []


def test_verify_of_sound_layers(node: Path) -> None:
    checks = ask_json("verify", node)
    assert [check["rows"] for check in checks] == [4, 1]
    assert all(not check["damaged"] and not check["problem"] for check in checks)
    assert "sound" in ask("verify", node)


def test_nothing_is_changed(node: Path) -> None:
    before = content_of(node)
    for command in ("inspect", "verify", "dump"):
        ask(command, node)
    assert content_of(node) == before


def test_verify_says_where_a_layer_is_damaged_and_reads_the_rest(tmp_path: Path) -> None:
    items = [plain(f"key {number}", "value " * 20 + str(number * 7919)) for number in range(5000)]
    build(tmp_path / "layer", items)
    damage(tmp_path / "layer")
    (check,) = ask_json("verify", tmp_path, status=1)
    assert 1 <= len(check["damaged"]) <= 3
    assert "checksum mismatch" in check["damaged"][0]["problem"]
    assert 4000 < check["rows"] < 5000
    assert "tokens" in ask("verify", tmp_path, status=1)


def test_a_layer_that_cannot_be_opened_is_told_beside_the_others(node: Path) -> None:
    for file in (node / "shard-0" / "layers" / "live").glob("*.sst"):
        file.unlink()
    base, live = ask_json("inspect", node, status=1)
    assert base["problem"] == ""
    assert live["problem"] != ""
    assert ask_json("verify", node, status=1)[1]["problem"] != ""


def test_verify_finds_rows_that_are_not_what_we_write(tmp_path: Path) -> None:
    good = plain("alice", "x")
    build(tmp_path / "facts", [good], LayerFacts(least_us=AT_US + 1, greatest_us=AT_US + 1, rows=1))
    assert "its facts are" in ask_json("verify", tmp_path / "facts", status=1)[0]["problem"]
    wrong_token = bytes(8) + good[0][8:]
    for number, item in enumerate([(wrong_token, good[1]), (good[0], good[1][:-1]), (good[0], b"\x63" + good[1][1:])]):
        build(tmp_path / f"wrong{number}", [item], LayerFacts(least_us=AT_US, greatest_us=AT_US, rows=1))
        (check,) = ask_json("verify", tmp_path / f"wrong{number}", status=1)
        assert len(check["damaged"]) == 1


def test_refusals(tmp_path: Path, node: Path) -> None:
    assert "there is no layer in" in ask("inspect", tmp_path / "nowhere", status=1)
    assert "is not a hexadecimal number" in ask("dump", node, "--key", "0xzz", status=1)
    (node / "run").mkdir()
    with file_lock.acquire(node / "run" / "control.lock"):
        assert "a node runs in" in ask("verify", node / "shard-0", status=1)
    ask("verify", node / "shard-0")

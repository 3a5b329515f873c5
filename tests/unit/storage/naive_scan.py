"""The reference for scans: reads the rows one at a time."""

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.unit.storage.random_rows import MIXED

from ebla.model.rows import EMPTY_HEAD, PartitionHead, Row, without_deleted
from ebla.model.schema import TableSchema
from ebla.model.selection import ColumnSelector, KeyCondition, KeyOperator, SelectorKind
from ebla.model.token import TokenRange
from ebla.model.values import decode
from ebla.storage.codec.key_codec import decode_clustering, decode_token, in_spans, partition_key_of, split_key
from ebla.storage.codec.live_rows import visible_cells
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan.scan_columns import select_values
from ebla.storage.scan.stack_scan import ScanQuery

ALL = select_values(one.name for one in MIXED.columns)
TIMES = (
    *select_values("spcdx"),
    ColumnSelector("", SelectorKind.TOKEN, "where"),
    *(
        ColumnSelector(name, kind, f"{kind} {name}")
        for name in "swxz"
        for kind in (SelectorKind.WRITETIME, SelectorKind.TTL)
    ),
)
Part = tuple[list[Item], TokenRange, bool]
"""What a layer holds, its range, and whether it has a sidecar."""


def expected(parts: Sequence[Part], question: ScanQuery) -> list[dict[str, Any]]:
    schema = question.schema
    clipped = [[item for item in items if decode_token(item[0]) in token_range] for items, token_range, _ in parts]
    shown: list[dict[str, Any]] = []
    head = EMPTY_HEAD
    prefix = b""
    merged = [item for item in merge_streams(clipped, schema) if _counts(item, question)]
    for key, value in [*merged, (b"\xff" * 20, b"")]:
        here = split_key(key)[0] if value else b""
        if here != prefix:
            if prefix and not any(row["prefix"] == prefix for row in shown) and (static := _static(head, question)):
                shown.append({"prefix": prefix, **static})
            prefix, head = here, EMPTY_HEAD
        if value and value[1] & RowFlag.HEAD:
            head = decode_head(value)
        elif value:
            clustering = split_key(key)[2]
            row = decode_row(value, schema.layouts)
            deletion = head.deletion_of(clustering)
            row = row if deletion is None else without_deleted(row, deletion)
            values = visible_cells(schema, row, question.now_s)
            if values or (row.marker is not None and row.marker.is_live(question.now_s)):
                names = [one.name for one in schema.clustering]
                wire = dict(zip(names, decode_clustering(schema.clustering, clustering)))
                wire |= {schema.by_number[number].name: data for number, data in values.items()}
                times = _times(row, question)
                shown.append({"prefix": here, **wire, **times, **_static(head, question)})
    return [_typed(row, question) for row in shown if _meets(row, question)]


def _counts(item: Item, question: ScanQuery) -> bool:
    """Rows within the spans, and the heads of their partitions whatever the spans are."""
    if in_spans(item[0], question.spans):
        return True
    prefix = split_key(item[0])[0]
    return bool(item[1][1] & RowFlag.HEAD) and any(start.startswith(prefix) for start, _ in question.spans)


def _static(head: PartitionHead, question: ScanQuery) -> dict[str, Any]:
    if not any(one.name == "s" for one in question.columns):
        return {}
    static = head.static if head.deletion is None else without_deleted(head.static, head.deletion)
    cells = visible_cells(question.schema, static, question.now_s)
    values = {question.schema.by_number[number].name: data for number, data in cells.items()}
    return {**values, **_times(static, question)}


def _times(row: Row, question: ScanQuery) -> dict[str, Any]:
    """By the label of their column; a row's own label never is that of a static column's time."""
    found: dict[str, Any] = {}
    for asked in question.columns:
        cell = row.cells.get(question.schema.column(asked.name).number) if asked.name else None
        if cell is None or not cell.is_live(question.now_s):
            continue
        if asked.kind is SelectorKind.WRITETIME:
            found[asked.label] = cell.timestamp_us
        elif asked.kind is SelectorKind.TTL and cell.ttl_s:
            found[asked.label] = cell.at_s - question.now_s
    return found


def _meets(row: dict[str, Any], question: ScanQuery) -> bool:
    wire = {**row, "p": partition_key_of(row["prefix"])}
    if question.partitions and row["prefix"] not in question.partitions:
        return False
    return all(_holds(one, wire.get(one.column), question.schema) for one in question.conditions)


def _holds(condition: KeyCondition, data: bytes | None, schema: TableSchema) -> bool:
    if data is None:
        return False
    kind = schema.column(condition.column).type
    value, others = decode(kind, data), [decode(kind, one) for one in condition.values]
    match condition.operator:
        case KeyOperator.EQUAL | KeyOperator.IN:
            return value in others
        case KeyOperator.LESS:
            return bool(value < others[0])
        case KeyOperator.LESS_OR_EQUAL:
            return bool(value <= others[0])
        case KeyOperator.GREATER:
            return bool(value > others[0])
        case KeyOperator.GREATER_OR_EQUAL:
            return bool(value >= others[0])


def _typed(row: dict[str, Any], question: ScanQuery) -> dict[str, Any]:
    row = {**row, question.schema.partition_key[0].name: partition_key_of(row["prefix"])}
    answer: dict[str, Any] = {}
    for asked in question.columns:
        if asked.kind is SelectorKind.TOKEN:
            answer[asked.label] = decode_token(row["prefix"])
        elif asked.kind is SelectorKind.VALUE:
            data = row.get(asked.name)
            answer[asked.label] = None if data is None else decode(question.schema.column(asked.name).type, data)
        else:
            answer[asked.label] = row.get(asked.label)
    return answer


def random_conditions(rng: Random) -> tuple[KeyCondition, ...]:
    """On the key columns of `MIXED`."""
    operators = [one for one in KeyOperator if one is not KeyOperator.IN]
    drawn = {
        "p": [f"p{number}".encode() for number in range(5)],
        "c": [number.to_bytes(4) for number in range(4)],
        "d": [b"", b"a", b"\0", b"b", b"b\0c"],
    }
    found = []
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice("ppcccd")
        if rng.random() < 0.3:
            found.append(KeyCondition(name, KeyOperator.IN, tuple(rng.choices(drawn[name], k=rng.randrange(4)))))
        else:
            found.append(KeyCondition(name, rng.choice(operators), (rng.choice(drawn[name]),)))
    return tuple(found)

"""A layer made of a file of staged rows: read, checked, written as one base with its sidecar. It reads one file and
writes one new folder, so it runs in any process that has them."""

import asyncio

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.ports.disk import Disk
from ebla.storage.columns import Shape, chunk_of
from ebla.storage.fold import BaseWriter
from ebla.storage.key_codec import decode_token
from ebla.storage.layer import KEY_BYTES_MIN, LayerEngine
from ebla.storage.layer_facts import LayerFacts
from ebla.storage.row_file import read_row_file


class BuildJob(msgspec.Struct, frozen=True, array_like=True):
    rows_file: str
    output_folder: str
    """Must not exist, and its parent must."""
    range: TokenRange
    schema: TableSchema


class BuildResult(msgspec.Struct, frozen=True, array_like=True):
    facts: LayerFacts
    rows: int


class RowOrder:
    """Looks on while records go by: keys strictly ascending from the first to the last, all of one range."""

    def __init__(self, token_range: TokenRange) -> None:
        self._range = token_range
        self._last: bytes | None = None
        self.rows = 0

    def check(self, batch: pa.RecordBatch) -> None:
        """Raises `InvalidRequest`."""
        keys = batch.column(0)
        if not len(keys):
            return
        if pc.min(pc.binary_length(keys)).as_py() < KEY_BYTES_MIN:
            raise InvalidRequest("a staged row has a key that is too short to be one")
        first = keys[0].as_py()
        ascending = pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py() if len(keys) > 1 else True
        if not ascending or (self._last is not None and first <= self._last):
            raise InvalidRequest("staged rows are not in the order of their keys, each once")
        self._check_range(keys)
        self._last = keys[-1].as_py()
        self.rows += len(keys)

    def _check_range(self, keys: pa.Array) -> None:
        # In order, so those of a range that does not wrap lie between the ends; of one that does, each is looked at.
        looked_at = keys if self._range.wraps else pa.array([keys[0].as_py(), keys[-1].as_py()])
        for key in looked_at.to_pylist():
            token = decode_token(key)
            if token not in self._range:
                raise InvalidRequest(
                    f"a staged row has token {token}, outside of {self._range.start} to {self._range.end}"
                )


async def check_rows(disk: Disk, path: str, token_range: TokenRange) -> int:
    """How many there are. Raises `Corruption` and `InvalidRequest`."""
    order = RowOrder(token_range)
    async for batch in read_row_file(disk, path):
        order.check(batch)
    return order.rows


async def run_build(engine: LayerEngine, disk: Disk, job: BuildJob) -> BuildResult:
    """The output folder is durable on return. On any error it is gone, and nothing else has changed."""
    order = RowOrder(job.range)
    shape = Shape(job.schema)
    writer = BaseWriter(engine, disk, job.output_folder, job.schema)
    try:
        async for batch in read_row_file(disk, job.rows_file):
            order.check(batch)
            writer.add(chunk_of(shape, *batch.columns))
            # The loop of the process that builds must stay able to answer and to be cancelled.
            await asyncio.sleep(0)
        if not order.rows:
            raise Corruption(f"{job.rows_file} has no rows", advice="cancel the job and start it again")
        await writer.finish()
    finally:
        await writer.abandon()
    return BuildResult(writer.facts, order.rows)

"""Puts over Flight: how their frames are read and answered, and how several files share one stream."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from ebla.bulk.loop_bridge import LoopBridge
from ebla.bulk.stream_service import IncomingPut, StreamService
from ebla.model.errors import ConnectionLost, InvalidRequest, Unavailable
from ebla.model.transfers import ROWS_NAME
from ebla.wire.flight_format import FILES_TOGETHER_MAX, byte_values
from ebla.wire.frames import encode
from ebla.wire.transfer_messages import FlightPut, PutAnswer


class PutReader(Protocol):
    """`pyarrow.flight.MetadataRecordBatchReader`, as far as it is used."""

    def read_chunk(self) -> Any: ...


class PutWriter(Protocol):
    """`pyarrow.flight.FlightMetadataWriter`."""

    def write(self, metadata: pa.Buffer) -> None: ...


class MultiFilePut:
    """Several files on one stream, one after another. The first is open already. Files that arrive whole in one value,
    as most small ones do, are put by one call into the loop for all of them in a batch."""

    def __init__(
        self, stream_service: StreamService, loop: LoopBridge, first: IncomingPut, others: Sequence[FlightPut]
    ) -> None:
        self._plane = stream_service
        self._loop = loop
        self._files = len(others) + 1
        self._pending = deque(others)
        self._stream: IncomingPut | None = first
        self._arrived = 0
        """Bytes of the open file."""
        self._append_running: Future[None] | None = None
        self._answers: list[PutAnswer] = []

    def take(self, reader: PutReader, writer: PutWriter) -> None:
        try:
            writer.write(encode_answer(PutAnswer(0, 0, self._files)))
            while (chunk := next_chunk(reader)) is not None:
                self._take(byte_values(chunk.data))
            if self._stream is not None or self._pending:
                raise ConnectionLost("the stream of files was cut off")
            for answer in self._answers:
                writer.write(encode_answer(answer))
        finally:
            self._close()

    def _take(self, values: Sequence[memoryview]) -> None:
        whole: list[tuple[FlightPut, memoryview]] = []
        for data in values:
            if self._stream is None:
                if not self._pending:
                    raise InvalidRequest("more files arrived than were announced")
                put = self._pending.popleft()
                if len(data) == put.size_bytes:
                    whole.append((put, data))
                    continue
                self._put_whole(whole)
                self._stream, self._arrived = self._loop.call(self._plane.open_put(put)), 0
            self._append(self._stream, data)
        self._put_whole(whole)

    def _append(self, stream: IncomingPut, data: memoryview) -> None:
        """Runs while the next batch is being received, unless this is the file's last."""
        self._wait_append()
        self._append_running = self._loop.begin(self._plane.append(stream, data))
        self._arrived += len(data)
        if self._arrived >= stream.size_bytes:
            self._wait_append()
            self._answers.append(self._loop.call(self._plane.finish_put(stream)))
            self._close()

    def _put_whole(self, whole: list[tuple[FlightPut, memoryview]]) -> None:
        if whole:
            self._answers += self._loop.call(self._put_all(tuple(whole)))
            whole.clear()

    async def _put_all(self, whole: Sequence[tuple[FlightPut, memoryview]]) -> list[PutAnswer]:
        return [await self._put_one(put, data) for put, data in whole]

    async def _put_one(self, put: FlightPut, data: memoryview) -> PutAnswer:
        stream = await self._plane.open_put(put)
        try:
            if stream.received_bytes:
                raise Unavailable(f"{put.name} was partly received before", advice="send it alone")
            await self._plane.append(stream, data)
            return await self._plane.finish_put(stream)
        finally:
            self._plane.close_put(stream)

    def _wait_append(self) -> None:
        append, self._append_running = self._append_running, None
        if append is not None:
            self._loop.wait(append)

    def _close(self) -> None:
        """Waits for the running append first."""
        stream, self._stream = self._stream, None
        try:
            self._wait_append()
        finally:
            if stream is not None:
                self._loop.post(self._plane.close_put, stream)


def split_put(put: FlightPut) -> list[FlightPut]:
    """One put for each file of it. Raises `InvalidRequest`."""
    if not put.more:
        return [put]
    if len(put.more) >= FILES_TOGETHER_MAX:
        raise InvalidRequest(f"{len(put.more) + 1} files are more than one stream may carry")
    named = ((put.name, put.size_bytes), *put.more)
    if put.offset or any(name == ROWS_NAME for name, _ in named):
        raise InvalidRequest("only files can share a stream, and only from their start")
    return [msgspec.structs.replace(put, name=name, size_bytes=size, more=()) for name, size in named]


def next_chunk(reader: PutReader) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except pa.ArrowException as error:
        raise ConnectionLost(f"the stream was cut off: {error}") from None


def encode_answer(answer: PutAnswer) -> pa.Buffer:
    return pa.py_buffer(encode(answer))

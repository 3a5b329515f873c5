"""Streams into staging, as they come through the Flight door: what is read of them and answered, and how several files
arrive on one of them."""

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
    """Several files on one stream, one behind the other. The first is open; those that come whole in one value, as most
    small ones do, ask the loop once for all of them in a batch."""

    def __init__(
        self, stream_service: StreamService, calls: LoopBridge, first: IncomingPut, others: Sequence[FlightPut]
    ) -> None:
        self._plane = stream_service
        self._calls = calls
        self._files = len(others) + 1
        self._waiting = deque(others)
        self._place: IncomingPut | None = first
        self._arrived = 0
        """Of the one that is open."""
        self._running: Future[None] | None = None
        self._answers: list[PutAnswer] = []

    def take(self, reader: PutReader, writer: PutWriter) -> None:
        try:
            writer.write(encode_answer(PutAnswer(0, 0, self._files)))
            while (chunk := next_chunk(reader)) is not None:
                self._take(byte_values(chunk.data))
            if self._place is not None or self._waiting:
                raise ConnectionLost("the stream of files broke off")
            for answer in self._answers:
                writer.write(encode_answer(answer))
        finally:
            self._close()

    def _take(self, values: Sequence[memoryview]) -> None:
        whole: list[tuple[FlightPut, memoryview]] = []
        for data in values:
            if self._place is None:
                if not self._waiting:
                    raise InvalidRequest("more came than was announced")
                put = self._waiting.popleft()
                if len(data) == put.size_bytes:
                    whole.append((put, data))
                    continue
                self._put_whole(whole)
                self._place, self._arrived = self._calls.call(self._plane.open_put(put)), 0
            self._append(self._place, data)
        self._put_whole(whole)

    def _append(self, place: IncomingPut, data: memoryview) -> None:
        """While the next batch is being received, unless this is the file's last."""
        self._wait()
        self._running = self._calls.begin(self._plane.append(place, data))
        self._arrived += len(data)
        if self._arrived >= place.size_bytes:
            self._wait()
            self._answers.append(self._calls.call(self._plane.finish_put(place)))
            self._close()

    def _put_whole(self, whole: list[tuple[FlightPut, memoryview]]) -> None:
        if whole:
            self._answers += self._calls.call(self._all_put(tuple(whole)))
            whole.clear()

    async def _all_put(self, whole: Sequence[tuple[FlightPut, memoryview]]) -> list[PutAnswer]:
        return [await self._one_put(put, data) for put, data in whole]

    async def _one_put(self, put: FlightPut, data: memoryview) -> PutAnswer:
        place = await self._plane.open_put(put)
        try:
            if place.received_bytes:
                raise Unavailable(f"{put.name} has begun already", advice="send it alone")
            await self._plane.append(place, data)
            return await self._plane.finish_put(place)
        finally:
            self._plane.close_put(place)

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._calls.wait(running)

    def _close(self) -> None:
        """The place is closed behind what is still being written to it."""
        place, self._place = self._place, None
        try:
            self._wait()
        finally:
            if place is not None:
                self._calls.tell(self._plane.close_put, place)


def split_put(put: FlightPut) -> list[FlightPut]:
    """A put for each file of it. Raises `InvalidRequest`."""
    if not put.more:
        return [put]
    if len(put.more) >= FILES_TOGETHER_MAX:
        raise InvalidRequest(f"{len(put.more) + 1} files are more than come on one stream")
    named = ((put.name, put.size_bytes), *put.more)
    if put.offset or any(name == ROWS_NAME for name, _ in named):
        raise InvalidRequest("only files come together, and from their beginning")
    return [msgspec.structs.replace(put, name=name, size_bytes=size, more=()) for name, size in named]


def next_chunk(reader: PutReader) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except pa.ArrowException as error:
        raise ConnectionLost(f"the stream broke off: {error}") from None


def encode_answer(answer: PutAnswer) -> pa.Buffer:
    return pa.py_buffer(encode(answer))

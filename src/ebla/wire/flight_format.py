"""The format that both ends of a Flight stream share: bytes in record batches, and errors beside a status."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from ebla.model.errors import EblaError
from ebla.model.identity import Address, HostId
from ebla.wire.errors import error_from_frame, failure_frame
from ebla.wire.frames import FailureFrame, encode

BYTES_SCHEMA = pa.schema([pa.field("bytes", pa.binary(), nullable=False)])
"""For files in either direction, and for rows sent to staging, where a batch is one record of
`storage/codec/row_file.py`."""
CHECKSUM_BYTES = 4
FILES_TOGETHER_MAX = 1024
"""On one stream."""
END_OF_ROWS = b"end"
"""Metadata after the last record of rows: a broken connection must not look like their end."""

MERGED_RUNS = b"merged"
"""Metadata before the first record if the staged rows are those of all sealed attempts, not of one."""
NO_BYTES = pa.RecordBatch.from_arrays([pa.nulls(0, pa.binary())], schema=BYTES_SCHEMA)
"""Carries only metadata."""

_failures = msgspec.msgpack.Decoder(FailureFrame)


def certificate_host_name(host: HostId) -> str:
    """As in a node's certificate (`runtime/tls.py`). TLS libraries compare names with a colon literally."""
    return f"ebla:host:{host}"


def flight_uri(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"grpc+tls://{host}:{address.port}"


def bytes_batch(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """One value, without a copy."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    offsets = pa.py_buffer(np.array([0, buffer.size], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])
    return pa.RecordBatch.from_arrays([column], schema=BYTES_SCHEMA)


def values_batch(values: Sequence[bytes]) -> pa.RecordBatch:
    """Several values, copied into one buffer."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=BYTES_SCHEMA)


def byte_values(batch: pa.RecordBatch) -> list[memoryview]:
    """The values of the one column, without a copy."""
    column = batch.column(0)
    _, offsets_buffer, data = column.buffers()
    if data is None:
        return [memoryview(b"") for _ in range(len(column))]
    offsets = np.frombuffer(offsets_buffer, np.int32, len(column) + 1, column.offset * 4).tolist()
    whole = memoryview(data)
    return [whole[start:end] for start, end in pairwise(offsets)]


def decode_checksums(metadata: bytes) -> list[int]:
    """The checksums of the files that end in a batch."""
    places = range(0, len(metadata), CHECKSUM_BYTES)
    return [int.from_bytes(metadata[place : place + CHECKSUM_BYTES]) for place in places]


def encode_failure(error: EblaError) -> bytes:
    """Class, outcome, message and advice."""
    return encode(failure_frame(0, error))


def decode_failure(data: bytes) -> EblaError | None:
    """The error; None if the bytes hold none."""
    try:
        return error_from_frame(_failures.decode(data))
    except msgspec.MsgspecError:
        return None

"""Any bytes from a client lead to an answer or a closed connection: no exception, no leak, no defect report."""

import asyncio
import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.async_tests import settled
from tests.unit.cql.protocol_rig import (
    STARTUP_BODY,
    ConnectionRig,
    Wired,
    execute,
    frames_of,
    long_string,
    query,
    request,
)

from ebla.model.error_codes import CqlCode
from ebla.options import NodeLimits
from ebla.wire.cql import notation
from ebla.wire.cql.compression import LZ4
from ebla.wire.cql.frames import CqlFrame, Opcode

LIMITS = NodeLimits(cql_request_bytes_max=2_000)
BOUNDS = {"first_request_bytes_max": 500}
STARTUP = request(Opcode.STARTUP, STARTUP_BODY)
STARTUP_LZ4 = request(
    Opcode.STARTUP,
    notation.short(2)
    + notation.string("CQL_VERSION")
    + notation.string("3.0.0")
    + notation.string("COMPRESSION")
    + notation.string("lz4"),
)
WELL_FORMED = (
    request(Opcode.OPTIONS),
    request(Opcode.REGISTER, notation.string_list(["SCHEMA_CHANGE", "STATUS_CHANGE"])),
    query("SELECT * FROM t"),
    execute(b"0123456789abcdef"),
    request(Opcode.EXECUTE, b"\0\2id" + struct.pack(">HBHi", 1, 1, 1, 3) + b"abc"),
    request(Opcode.QUERY, long_string("x") + struct.pack(">HBH", 4, 0x45, 1) + b"\0\1n\0\0\0\1v\0\0\0\5"),
    request(Opcode.PREPARE, long_string("INSERT")),
    request(Opcode.BATCH, b"\0\0\1\0" + long_string("INSERT") + struct.pack(">HHB", 0, 4, 0)),
    request(Opcode.AUTH_RESPONSE, notation.value(b"\0a\0b")),
    request(Opcode.EXECUTE, LZ4.compress(b"\0\2id\0\1\0" * 40), flags=1),
    request(Opcode.QUERY, notation.bytes_map({"k": b"v"}) + long_string("x") + b"\0\1\0", flags=4),
)

opcodes = st.sampled_from([*(int(opcode) for opcode in Opcode), 0x77])
made_up = st.builds(
    lambda opcode, body, stream, flags: request(opcode, body, stream=stream, flags=flags),
    opcodes,
    st.binary(max_size=200),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 255),
)


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A valid frame with some bytes changed, cut or added."""
    frame = bytearray(draw(st.sampled_from(WELL_FORMED)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(frame) - 1))
        frame[place] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(1, len(frame)))]) + draw(st.binary(max_size=3))


pieces = st.lists(st.one_of(st.sampled_from(WELL_FORMED), made_up, bent(), st.binary(max_size=50)), max_size=12)
greetings = st.sampled_from([b"", STARTUP, STARTUP_LZ4])


async def _heard(parted: ConnectionRig, data: bytes, steps: list[int]) -> tuple[list[CqlFrame], bool]:
    """All answers, and whether the connection was closed."""
    async with asyncio.TaskGroup() as tasks:
        wired = Wired(parted, tasks)
        connection, outlet = wired.connection, wired.transport
        for size in steps:
            connection.received(data[:size])
            data = data[size:]
            await settled()
        connection.received(data)
        await settled()
        frames, closed = frames_of(outlet.sent), outlet.closed is not None
        connection.lost()
    return frames, closed


@settings(max_examples=400, deadline=None)
@given(greetings, pieces, st.lists(st.integers(0, 60), max_size=10))
@example(STARTUP, [b"\x04\x00\x00\x01\x07\x7f\xff\xff\xff"], [])
@example(b"", [b"\x04\x00\x00\x01\x01\x00\x00\x00\x02\xff\xff"], [3, 1])
@example(STARTUP_LZ4, [request(Opcode.QUERY, b"\x7f\xff\xff\xff\0", flags=1)], [])
def test_no_bytes_are_too_strange(greeting: bytes, sent: list[bytes], steps: list[int]) -> None:
    parted = ConnectionRig(limits=LIMITS, bounds=BOUNDS)
    frames, closed = asyncio.run(_heard(parted, greeting + b"".join(sent), steps))
    assert parted.reports == []
    assert parted.load.bytes == 0
    for frame in frames:
        if frame.opcode == Opcode.ERROR:
            code = int.from_bytes(frame.body[:4])
            assert code in (CqlCode.PROTOCOL_ERROR, CqlCode.INVALID, CqlCode.SYNTAX_ERROR)
    if closed:
        assert frames[-1].opcode == Opcode.ERROR


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WELL_FORMED), max_size=20), st.lists(st.integers(0, 60), max_size=20))
def test_every_good_frame_is_answered_however_its_bytes_arrive(sent: list[bytes], steps: list[int]) -> None:
    parted = ConnectionRig(limits=LIMITS, bounds=BOUNDS)
    frames, closed = asyncio.run(_heard(parted, STARTUP_LZ4 + b"".join(sent), steps))
    assert not closed
    assert len(frames) == 1 + len(sent)
    refused = sum(frame.opcode == Opcode.ERROR for frame in frames)
    assert refused == sent.count(WELL_FORMED[8]), "credentials were not requested"

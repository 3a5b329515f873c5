"""The frames of a connection between two processes, and their one codec.

Every frame is one msgpack array that begins with its tag. Fields are only appended, with defaults, and tags are never
reused, so that either side may be one version ahead. The transport adds the length; a frame here is complete.

A body is the struct of the verb. It is encoded in the same pass as its frame, and decoded in a second one by the code
that knows the verb. Until then it stays bytes.
"""

import enum

import msgspec

from ebla.model.errors import InvalidRequest, Outcome
from ebla.model.identity import ClusterId, HostId

PROTOCOL_OLDEST = 1
PROTOCOL_NEWEST = 1


class Lane(enum.IntEnum):
    """Kinds of traffic with a connection of their own: a large answer must not delay a heartbeat or a vote."""

    RAFT = 1
    CONTROL = 2
    DATA = 3
    JOIN = 4
    """For a node that has no certificate yet. Only the hand-over of the certificate authority is served here."""
    LEASE = 5


class RefusalReason(enum.IntEnum):
    VERSION = 1
    CLUSTER = 2
    HOST = 3
    LANE = 4
    BUSY = 5
    EXCLUDED = 6
    LEFT = 7
    """The host has left the cluster, and its processes must end."""


OPERATOR_PROCESS = "cli"
"""How the commands of an operator introduce themselves, by the identity of a local node."""


class Introduction(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How a process introduces itself. `cluster` is None until the node belongs to one."""

    host: HostId
    cluster: ClusterId | None
    cluster_name: str
    process: str = "control"
    features: tuple[str, ...] = ()


class HelloFrame(msgspec.Struct, frozen=True, array_like=True, tag=1, kw_only=True):
    """The first frame of the side that connected. `expected_host` is the host it expects to have reached."""

    oldest: int
    newest: int
    lane: Lane
    frame_bytes_max: int
    introduction: Introduction
    expected_host: HostId | None = None


class WelcomeFrame(msgspec.Struct, frozen=True, array_like=True, tag=2):
    version: int
    frame_bytes_max: int
    introduction: Introduction


class RefusalFrame(msgspec.Struct, frozen=True, array_like=True, tag=3):
    reason: int
    """A `RefusalReason`, or a value that only a newer peer knows."""
    message: str


class RequestFrame(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False, kw_only=True):
    """`id` counts up by one on each connection, from 1: a repeated frame is recognised by it."""

    id: int
    verb: int
    remaining_ms: int
    body: msgspec.Raw


class AnswerFrame(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    id: int
    body: msgspec.Raw


class FailureFrame(msgspec.Struct, frozen=True, array_like=True, tag=6, kw_only=True):
    id: int
    error: str
    outcome: Outcome
    message: str
    advice: str = ""


class CancelFrame(msgspec.Struct, frozen=True, array_like=True, tag=7):
    id: int


class NoticeFrame(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A notice: it has no answer and no deadline, and may be lost."""

    notice: int
    body: msgspec.Raw


WireFrame = (
    HelloFrame | WelcomeFrame | RefusalFrame | RequestFrame | AnswerFrame | FailureFrame | CancelFrame | NoticeFrame
)

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[WireFrame] = msgspec.msgpack.Decoder(WireFrame)

encode = _encoder.encode
"""Any frame or body to bytes."""


def with_body(body: object) -> msgspec.Raw:
    """A struct as the body of a frame: the encoder writes it in the same pass. Only the static type is a lie."""
    return body  # type: ignore[return-value]  # the encoder takes any struct where Raw stands; see above


def decode(data: bytes) -> WireFrame:
    """Raises `InvalidRequest` for bytes that are not a frame."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"not a frame: {error}") from None

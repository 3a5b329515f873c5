"""Messages of the verb that sets fault points, for tests of a running cluster."""

import enum

import msgspec


class FaultKind(enum.StrEnum):
    """What happens to code that reaches a fault point."""

    PAUSE = "pause"
    """It waits until the point is released, for a limited time."""
    FAIL = "fail"
    """It fails with `FaultInjected`."""
    CRASH = "crash"
    """The process dies as by `kill -9`."""


class FaultAction(enum.StrEnum):
    LIST = "list"
    SET = "set"
    RELEASE = "release"
    CLEAR = "clear"
    REACH = "reach"
    """Sent by a shard that has reached the point; answered when it may go on."""


class FaultRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """`name` for `set`, `release` and `reach`; `kind` and `once` for `set`."""

    action: FaultAction
    name: str = ""
    kind: FaultKind = FaultKind.PAUSE
    once: bool = False
    """The point unsets itself when it is reached."""


class FaultPointView(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    name: str
    kind: FaultKind | None = None
    """None: it is not set."""
    once: bool = False
    waiting: int = 0
    """How many wait there now."""
    reached: int = 0
    """How often it was reached while set, since the node started."""


class FaultAnswer(msgspec.Struct, frozen=True, array_like=True):
    """All points, after the action."""

    points: tuple[FaultPointView, ...]

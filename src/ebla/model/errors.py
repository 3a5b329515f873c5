"""The error tree. An error tells its caller what became of the operation and whose fault it was.

Codes of CQL and REST follow from these two and the class, in `error_codes.py` and nowhere else.
"""

import enum
from typing import ClassVar


class Outcome(enum.StrEnum):
    """What became of the operation that failed."""

    NOT_APPLIED = "not_applied"
    """It did not happen and never will: trying again is safe."""
    UNKNOWN = "unknown"
    """It may have happened, or may yet: only an idempotent operation may be tried again."""


class Fault(enum.StrEnum):
    """Who can mend it."""

    CALLER = "caller"
    PEER = "peer"
    US = "us"


class EblaError(Exception):
    """The root. `message` says what is wrong; `advice` says what to do about it."""

    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    fault: ClassVar[Fault] = Fault.US

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message


class InvalidRequest(EblaError):
    """The request itself is wrong; sent again unchanged it fails again."""

    fault = Fault.CALLER


class TooLarge(InvalidRequest):
    """A value, command or frame is over its limit."""


class Refused(EblaError):
    """Valid, but not now: a condition, fence, lock or state does not allow it."""

    fault = Fault.CALLER


class Stale(Refused):
    """The caller acts on an outdated view (version, session, lock, lease) and must refresh it."""


class Overloaded(EblaError):
    """A bound on work in flight was reached; nothing was started."""

    fault = Fault.US


class Unavailable(EblaError):
    """Too few nodes are there to even try."""

    fault = Fault.PEER


class Unreachable(EblaError):
    """The peer could not be reached, and the request was not sent."""

    fault = Fault.PEER


class ConnectionLost(EblaError):
    """The connection ended after the request was sent and before its answer came."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER


class DeadlineExceeded(EblaError):
    """No answer in time."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER


class Cancelled(EblaError):
    """The caller withdrew the request while it was under way."""

    outcome = Outcome.UNKNOWN
    fault = Fault.CALLER


class Corruption(EblaError):
    """Stored bytes are not what was written. Never repaired silently."""

    fault = Fault.US


class DiskFull(EblaError):
    """No space: the write was refused and what was there stays readable."""

    fault = Fault.US


class InternalError(EblaError):
    """A defect of ours, or of what we stand on; the story in the log tells more."""

    outcome = Outcome.UNKNOWN
    fault = Fault.US

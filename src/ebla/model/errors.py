"""The error tree. An error tells its caller what became of the operation and whose fault it was.

Codes of CQL and REST follow from these two and the class, in `error_codes.py` and nowhere else.
"""

import enum
from collections.abc import Iterator
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
    is_transient: ClassVar[bool] = False
    """The same call may succeed a little later: the peer restarts, is overloaded, or is cut off. Retry only what is
    idempotent: where `outcome` is unknown, the call may have happened."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message


class InvalidRequest(EblaError):
    """The request itself is wrong; sent again unchanged it fails again."""

    fault = Fault.CALLER


class BadSyntax(InvalidRequest):
    """The text of a statement cannot be read; the message begins with the line and column."""


class BadConfiguration(InvalidRequest):
    """Options of a keyspace or table that make no sense."""


class Unprepared(InvalidRequest):
    """No statement is prepared here under this id; the client prepares it again."""

    def __init__(self, message: str, *, advice: str = "", statement_id: bytes = b"") -> None:
        super().__init__(message, advice=advice)
        self.statement_id = statement_id


class BadProtocol(InvalidRequest):
    """What a client sent is no message that has a place here."""


class BadCredentials(InvalidRequest):
    """Who the client says to be is not who it can prove to be."""


class TooLarge(InvalidRequest):
    """A value, command or frame is over its limit."""


class Refused(EblaError):
    """Valid, but not now: a condition, fence, lock or state does not allow it."""

    fault = Fault.CALLER


class AlreadyExists(Refused):
    """A keyspace or table of this name is there already. `table` is empty where it is about a keyspace."""

    def __init__(self, message: str, *, advice: str = "", keyspace: str = "", table: str = "") -> None:
        super().__init__(message, advice=advice)
        self.keyspace = keyspace
        self.table = table


class NotFound(InvalidRequest):
    """No keyspace, table or column of this name."""


class Stale(Refused):
    """The caller acts on an outdated view (version, session, lock, lease) and must refresh it."""


class Overloaded(EblaError):
    """A bound on work in flight was reached; nothing was started."""

    fault = Fault.US
    is_transient = True


class Unavailable(EblaError):
    """Too few nodes are there to even try."""

    fault = Fault.PEER
    is_transient = True


class TooFewReplicas(Unavailable):
    """Fewer replicas are up than the consistency level asks for; nothing was sent."""

    def __init__(self, message: str, *, advice: str = "", required: int = 0, alive: int = 0) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.alive = alive


class Unreachable(EblaError):
    """The peer could not be reached, and the request was not sent."""

    fault = Fault.PEER
    is_transient = True


class ConnectionLost(EblaError):
    """The connection ended after the request was sent and before its answer came."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER
    is_transient = True


class DeadlineExceeded(EblaError):
    """No answer in time."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER
    is_transient = True


class WriteTimeout(DeadlineExceeded):
    """Too few replicas acknowledged a write in time. Those that did keep it, and the others may yet get it."""

    def __init__(self, message: str, *, advice: str = "", required: int = 0, received: int = 0) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.received = received


class ReadTimeout(DeadlineExceeded):
    """Too few replicas answered a read in time."""

    def __init__(
        self, message: str, *, advice: str = "", required: int = 0, received: int = 0, has_data: bool = False
    ) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.received = received
        self.has_data = has_data


class WriteFailed(EblaError):
    """So many replicas refused a write that the level cannot be reached any more. Others may have taken it."""

    outcome = Outcome.UNKNOWN
    fault = Fault.US

    def __init__(
        self, message: str, *, advice: str = "", required: int = 0, received: int = 0, failed: int = 0
    ) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.received = received
        self.failed = failed


class ReadFailed(EblaError):
    """So many replicas could not serve a read that the level cannot be reached."""

    fault = Fault.US

    def __init__(
        self, message: str, *, advice: str = "", required: int = 0, received: int = 0, failed: int = 0
    ) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.received = received
        self.failed = failed


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


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The single errors in a group, at any depth; an error that is no group yields itself."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from leaf_errors(each)

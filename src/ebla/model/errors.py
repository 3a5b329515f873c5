"""The error tree. Every error says what became of the operation and whose fault it was.

`error_codes.py` derives the codes of CQL and REST from these two and the class.
"""

import enum
from collections.abc import Iterator
from typing import ClassVar


class Outcome(enum.StrEnum):
    """What became of the operation that failed."""

    NOT_APPLIED = "not_applied"
    """It did not happen and never will: a retry is safe."""
    UNKNOWN = "unknown"
    """It may have happened, or may still happen: only an idempotent operation may be retried."""


class Fault(enum.StrEnum):
    """Which side can fix it."""

    CALLER = "caller"
    PEER = "peer"
    US = "us"


class EblaError(Exception):
    """The base class. `message` says what is wrong; `advice` says what to do about it."""

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
    """The request itself is wrong; a retry of the same request fails again."""

    fault = Fault.CALLER


class BadSyntax(InvalidRequest):
    """The text of a statement cannot be parsed; the message begins with the line and column."""


class BadConfiguration(InvalidRequest):
    """Invalid options of a keyspace or table."""


class Unprepared(InvalidRequest):
    """No statement is prepared here with this id; the client must prepare it again."""

    def __init__(self, message: str, *, advice: str = "", statement_id: bytes = b"") -> None:
        super().__init__(message, advice=advice)
        self.statement_id = statement_id


class BadProtocol(InvalidRequest):
    """A client sent a message that is not allowed here."""


class BadCredentials(InvalidRequest):
    """The client could not prove its identity."""


class TooLarge(InvalidRequest):
    """A value, command or frame is over its limit."""


class Refused(EblaError):
    """Valid, but not allowed now by a condition, fence, lock or state."""

    fault = Fault.CALLER


class AlreadyExists(Refused):
    """A keyspace or table of this name exists already. `table` is empty for a keyspace."""

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

    is_transient = True


class Unavailable(EblaError):
    """Too few nodes are up to try."""

    fault = Fault.PEER
    is_transient = True


class TooFewReplicas(Unavailable):
    """Fewer replicas are up than the consistency level needs; nothing was sent."""

    def __init__(self, message: str, *, advice: str = "", required: int = 0, alive: int = 0) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.alive = alive


class Unreachable(EblaError):
    """The peer could not be reached, and the request was not sent."""

    fault = Fault.PEER
    is_transient = True


class HostLeft(Unreachable):
    """The peer refuses this host because it has left the cluster."""

    is_transient = False


class ConnectionLost(EblaError):
    """The connection ended after the request was sent and before its response arrived."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER
    is_transient = True


class DeadlineExceeded(EblaError):
    """No response in time."""

    outcome = Outcome.UNKNOWN
    fault = Fault.PEER
    is_transient = True


class _TooFewReplies(EblaError):
    """A request was sent, and fewer replicas than the level needs served it."""

    def __init__(
        self, message: str, *, advice: str = "", required: int = 0, received: int = 0, failed: int = 0
    ) -> None:
        super().__init__(message, advice=advice)
        self.required = required
        self.received = received
        self.failed = failed


class WriteTimeout(_TooFewReplies, DeadlineExceeded):
    """Too few replicas acknowledged a write in time. Those that did keep it; the others may still get it."""


class ReadTimeout(_TooFewReplies, DeadlineExceeded):
    """Too few replicas answered a read in time."""

    def __init__(
        self, message: str, *, advice: str = "", required: int = 0, received: int = 0, has_data: bool = False
    ) -> None:
        super().__init__(message, advice=advice, required=required, received=received)
        self.has_data = has_data


class WriteFailed(_TooFewReplies):
    """So many replicas refused a write that the level cannot be reached any more. Others may have applied it."""

    outcome = Outcome.UNKNOWN


class ReadFailed(_TooFewReplies):
    """So many replicas could not serve a read that the level cannot be reached."""


class Cancelled(EblaError):
    """The caller cancelled the request while it was in progress."""

    outcome = Outcome.UNKNOWN
    fault = Fault.CALLER


class Corruption(EblaError):
    """Stored bytes are not what was written. Never repaired silently."""


class DiskFull(EblaError):
    """No space: the write was refused; existing data stays readable."""


class InternalError(EblaError):
    """A bug of ours or of a library; see the log."""

    outcome = Outcome.UNKNOWN


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The single errors in a group, at any depth; an error that is no group yields itself."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from leaf_errors(each)

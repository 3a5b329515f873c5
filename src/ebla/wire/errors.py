"""Errors across the wire: the same class with the same outcome on the caller's side.

An error that this version does not know, or whose outcome it would understate, becomes an `InternalError` with the same
text. A caller must never believe "not applied" of something that may have happened.
"""

from ebla.model.errors import (
    AlreadyExists,
    BadConfiguration,
    BadCredentials,
    BadProtocol,
    BadSyntax,
    Cancelled,
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    DiskFull,
    EblaError,
    InternalError,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    ReadFailed,
    ReadTimeout,
    Refused,
    Stale,
    TooFewReplicas,
    TooLarge,
    Unavailable,
    Unprepared,
    Unreachable,
    WriteFailed,
    WriteTimeout,
)
from ebla.wire.frames import FailureFrame


class UnknownPeerError(InternalError):
    """An error of a newer peer that this version has no class for; the peer says that nothing was applied."""

    outcome = Outcome.NOT_APPLIED


ERROR_TAGS: dict[str, type[EblaError]] = {
    "invalid_request": InvalidRequest,
    "too_large": TooLarge,
    "refused": Refused,
    "stale": Stale,
    "overloaded": Overloaded,
    "unavailable": Unavailable,
    "unreachable": Unreachable,
    "connection_lost": ConnectionLost,
    "deadline_exceeded": DeadlineExceeded,
    "cancelled": Cancelled,
    "corruption": Corruption,
    "disk_full": DiskFull,
    "internal": InternalError,
    "already_exists": AlreadyExists,
    "not_found": NotFound,
    "too_few_replicas": TooFewReplicas,
    "write_timeout": WriteTimeout,
    "read_timeout": ReadTimeout,
    "write_failed": WriteFailed,
    "read_failed": ReadFailed,
    "bad_syntax": BadSyntax,
    "bad_configuration": BadConfiguration,
    "unprepared": Unprepared,
    "bad_protocol": BadProtocol,
    "bad_credentials": BadCredentials,
}
"""Tags are never reused, like the numbers of verbs."""

_TAG_OF: dict[type[EblaError], str] = {kind: tag for tag, kind in ERROR_TAGS.items()}


def failure_frame(request_id: int, error: EblaError) -> FailureFrame:
    """An error whose class has no tag is sent as its nearest ancestor that has one."""
    tag = next((_TAG_OF[kind] for kind in type(error).__mro__ if kind in _TAG_OF), "internal")
    return FailureFrame(id=request_id, error=tag, outcome=error.outcome, message=error.message, advice=error.advice)


def error_from_frame(failure: FailureFrame) -> EblaError:
    kind = ERROR_TAGS.get(failure.error)
    if kind is not None and kind.outcome is failure.outcome:
        return kind(failure.message, advice=failure.advice)
    text = f"{failure.error}: {failure.message}"
    if failure.outcome is Outcome.NOT_APPLIED:
        return UnknownPeerError(text, advice=failure.advice)
    return InternalError(text, advice=failure.advice)

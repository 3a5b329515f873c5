"""Errors across the wire: the same class with the same outcome on the caller's side.

An error that this version does not know, or whose outcome it would understate, becomes an `InternalError` with the same
text. A caller must never believe "not applied" of something that may have happened.
"""

from ebla.model import errors
from ebla.model.errors import EblaError, InternalError, Outcome
from ebla.wire.frames import FailureFrame


class UnknownPeerError(InternalError):
    """An error of a newer peer that this version has no class for; the peer says that nothing was applied."""

    outcome = Outcome.NOT_APPLIED


ERROR_TAGS: dict[str, type[EblaError]] = {
    "invalid_request": errors.InvalidRequest,
    "too_large": errors.TooLarge,
    "refused": errors.Refused,
    "stale": errors.Stale,
    "overloaded": errors.Overloaded,
    "unavailable": errors.Unavailable,
    "unreachable": errors.Unreachable,
    "host_left": errors.HostLeft,
    "connection_lost": errors.ConnectionLost,
    "deadline_exceeded": errors.DeadlineExceeded,
    "cancelled": errors.Cancelled,
    "corruption": errors.Corruption,
    "disk_full": errors.DiskFull,
    "internal": errors.InternalError,
    "already_exists": errors.AlreadyExists,
    "not_found": errors.NotFound,
    "too_few_replicas": errors.TooFewReplicas,
    "write_timeout": errors.WriteTimeout,
    "read_timeout": errors.ReadTimeout,
    "write_failed": errors.WriteFailed,
    "read_failed": errors.ReadFailed,
    "bad_syntax": errors.BadSyntax,
    "bad_configuration": errors.BadConfiguration,
    "unprepared": errors.Unprepared,
    "bad_protocol": errors.BadProtocol,
    "bad_credentials": errors.BadCredentials,
}
"""Tags are never reused, like the numbers of verbs."""

_TAG_OF: dict[type[EblaError], str] = {kind: tag for tag, kind in ERROR_TAGS.items()}


_HIDDEN = {
    "corruption": "stored data is damaged",
    "disk_full": "the disk is full",
    "internal": "internal error",
}


def client_text(error: EblaError) -> str:
    """What a client may read of an error. Messages of these errors hold paths of the server, or text of Python or a
    library; the log has them."""
    return hidden_text(error_tag(error)) or error.message


def hidden_text(tag: str) -> str | None:
    """What a client reads instead of the message of such an error; None: it may read the message."""
    return _HIDDEN.get(tag)


def error_tag(error: EblaError) -> str:
    """Of the nearest ancestor that has one."""
    return next((_TAG_OF[kind] for kind in type(error).__mro__ if kind in _TAG_OF), "internal")


def failure_frame(request_id: int, error: EblaError) -> FailureFrame:
    """An error whose class has no tag is sent as its nearest ancestor that has one."""
    return FailureFrame(
        id=request_id, error=error_tag(error), outcome=error.outcome, message=error.message, advice=error.advice
    )


def error_from_frame(failure: FailureFrame) -> EblaError:
    kind = ERROR_TAGS.get(failure.error)
    if kind is not None and kind.outcome is failure.outcome:
        return kind(failure.message, advice=failure.advice)
    text = f"{failure.error}: {failure.message}"
    if failure.outcome is Outcome.NOT_APPLIED:
        return UnknownPeerError(text, advice=failure.advice)
    return InternalError(text, advice=failure.advice)

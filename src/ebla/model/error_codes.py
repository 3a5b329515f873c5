"""Maps errors to codes of CQL and REST. No other place chooses codes.

A code is a promise about retries: drivers retry a request on `UNAVAILABLE` without checking whether it is idempotent,
so such a code must never be used for an error whose outcome is unknown.
"""

import enum
from typing import Final

import msgspec

from ebla.model import errors
from ebla.model.errors import EblaError, Fault, Outcome


class CqlCode(enum.IntEnum):
    """Error codes of the CQL native protocol, version 4."""

    SERVER_ERROR = 0x0000
    PROTOCOL_ERROR = 0x000A
    BAD_CREDENTIALS = 0x0100
    UNAVAILABLE = 0x1000
    OVERLOADED = 0x1001
    IS_BOOTSTRAPPING = 0x1002
    WRITE_TIMEOUT = 0x1100
    READ_TIMEOUT = 0x1200
    READ_FAILURE = 0x1300
    WRITE_FAILURE = 0x1500
    SYNTAX_ERROR = 0x2000
    UNAUTHORIZED = 0x2100
    INVALID = 0x2200
    CONFIG_ERROR = 0x2300
    ALREADY_EXISTS = 0x2400
    UNPREPARED = 0x2500


class ErrorCodes(msgspec.Struct, frozen=True):
    """The codes of one error. CQL distinguishes failed reads from failed writes."""

    cql_read: CqlCode
    cql_write: CqlCode
    rest: int


_INVALID: Final = ErrorCodes(CqlCode.INVALID, CqlCode.INVALID, 400)
_UNAVAILABLE: Final = ErrorCodes(CqlCode.UNAVAILABLE, CqlCode.UNAVAILABLE, 503)
_OVERLOADED: Final = ErrorCodes(CqlCode.OVERLOADED, CqlCode.OVERLOADED, 503)
_TIMEOUT: Final = ErrorCodes(CqlCode.READ_TIMEOUT, CqlCode.WRITE_TIMEOUT, 504)
_SERVER_ERROR: Final = ErrorCodes(CqlCode.SERVER_ERROR, CqlCode.SERVER_ERROR, 500)
_WITHDRAWN_STATUS: Final = 499
"""Not standard, but what proxies log for a client that disconnected; no client is left to read it."""

CODES: Final[dict[type[EblaError], ErrorCodes]] = {
    EblaError: _SERVER_ERROR,
    errors.InvalidRequest: _INVALID,
    errors.BadSyntax: ErrorCodes(CqlCode.SYNTAX_ERROR, CqlCode.SYNTAX_ERROR, 400),
    errors.BadConfiguration: ErrorCodes(CqlCode.CONFIG_ERROR, CqlCode.CONFIG_ERROR, 400),
    errors.Unprepared: ErrorCodes(CqlCode.UNPREPARED, CqlCode.UNPREPARED, 404),
    errors.BadProtocol: ErrorCodes(CqlCode.PROTOCOL_ERROR, CqlCode.PROTOCOL_ERROR, 400),
    errors.BadCredentials: ErrorCodes(CqlCode.BAD_CREDENTIALS, CqlCode.BAD_CREDENTIALS, 401),
    errors.NotFound: ErrorCodes(CqlCode.INVALID, CqlCode.INVALID, 404),
    errors.TooLarge: ErrorCodes(CqlCode.INVALID, CqlCode.INVALID, 413),
    errors.Refused: ErrorCodes(CqlCode.INVALID, CqlCode.INVALID, 409),
    errors.AlreadyExists: ErrorCodes(CqlCode.ALREADY_EXISTS, CqlCode.ALREADY_EXISTS, 409),
    # On this code drivers try another node, whose view may be newer.
    errors.Stale: ErrorCodes(CqlCode.IS_BOOTSTRAPPING, CqlCode.IS_BOOTSTRAPPING, 409),
    errors.Overloaded: _OVERLOADED,
    errors.Unavailable: _UNAVAILABLE,
    errors.TooFewReplicas: _UNAVAILABLE,
    errors.Unreachable: _UNAVAILABLE,
    errors.HostLeft: _UNAVAILABLE,
    errors.ConnectionLost: _TIMEOUT,
    errors.DeadlineExceeded: _TIMEOUT,
    errors.WriteTimeout: _TIMEOUT,
    errors.ReadTimeout: _TIMEOUT,
    errors.Cancelled: ErrorCodes(CqlCode.READ_TIMEOUT, CqlCode.WRITE_TIMEOUT, _WITHDRAWN_STATUS),
    errors.WriteFailed: ErrorCodes(CqlCode.WRITE_FAILURE, CqlCode.WRITE_FAILURE, 500),
    errors.ReadFailed: ErrorCodes(CqlCode.READ_FAILURE, CqlCode.READ_FAILURE, 500),
    errors.Corruption: ErrorCodes(CqlCode.READ_FAILURE, CqlCode.WRITE_FAILURE, 500),
    errors.DiskFull: ErrorCodes(CqlCode.READ_FAILURE, CqlCode.WRITE_FAILURE, 507),
    errors.InternalError: _SERVER_ERROR,
}

CODES_BY_OUTCOME: Final[dict[tuple[Outcome, Fault], ErrorCodes]] = {
    (Outcome.NOT_APPLIED, Fault.CALLER): _INVALID,
    (Outcome.NOT_APPLIED, Fault.PEER): _UNAVAILABLE,
    (Outcome.NOT_APPLIED, Fault.US): _SERVER_ERROR,
    (Outcome.UNKNOWN, Fault.CALLER): _TIMEOUT,
    (Outcome.UNKNOWN, Fault.PEER): _TIMEOUT,
    (Outcome.UNKNOWN, Fault.US): _SERVER_ERROR,
}


def codes_of(kind: type[EblaError]) -> ErrorCodes:
    """The codes of an error class: its own, else those of the nearest ancestor that has the same outcome and fault.

    A class that changes its ancestor's outcome or fault must not inherit its code, which may promise the opposite.
    """
    for ancestor in kind.__mro__:
        if ancestor in CODES and (ancestor.outcome, ancestor.fault) == (kind.outcome, kind.fault):
            return CODES[ancestor]
    return CODES_BY_OUTCOME[kind.outcome, kind.fault]


def as_read_error(error: EblaError) -> EblaError:
    """The same error as that of a read, which changed nothing: drivers take the code of a failed write for a write
    whose outcome is unknown."""
    codes = codes_of(type(error))
    if codes.cql_read is codes.cql_write or isinstance(error, errors.ReadTimeout | errors.ReadFailed):
        return error
    kind = errors.ReadTimeout if codes.cql_read is CqlCode.READ_TIMEOUT else errors.ReadFailed
    return kind(error.message, advice=error.advice)

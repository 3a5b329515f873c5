"""Where the next page of a SELECT goes on, as drivers carry it around. Pure."""

import msgspec

from ebla.model.errors import InvalidRequest

FORMAT = 1


class PagingState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    format: int
    position: bytes
    """Of the router, or a row's number for a table that is not stored."""
    left: int | None
    """Rows of LIMIT that are still to come; None: there is no limit."""
    prefix: bytes = b""
    """The partition in whose middle the next page may begin: its static values belong to those rows too."""
    shown: int = 0
    """Rows of that partition already shown, where they are counted here."""


def encode_paging_state(state: PagingState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_paging_state(data: bytes) -> PagingState:
    try:
        state = msgspec.msgpack.decode(data, type=PagingState)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"Invalid value for the paging state ({error})") from error
    if state.format != FORMAT:
        raise InvalidRequest(f"Invalid value for the paging state: format {state.format} is not known here")
    return state

"""The notations of the native protocol: the encoding of strings, bytes, lists and values in a body."""

import struct
from collections.abc import Mapping, Sequence

from ebla.model.errors import BadProtocol, TooLarge
from ebla.options import DEFAULT_LIMITS
from ebla.wire.cql.messages import UNSET, BoundValue

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">q")

NULL_LENGTH = _INT.pack(-1)


class BodyReader:
    """Raises `BadProtocol` if the body ends too early or is malformed."""

    __slots__ = ("_text_bytes", "_text_bytes_max", "body", "offset")

    def __init__(
        self, body: bytes, offset: int = 0, text_bytes_max: int = DEFAULT_LIMITS.cql_statement_bytes_max
    ) -> None:
        self.body = body
        self.offset = offset
        self._text_bytes = 0
        self._text_bytes_max = text_bytes_max

    def byte(self) -> int:
        return self._take(1)[0]

    def short(self) -> int:
        number: int = _SHORT.unpack(self._take(2))[0]
        return number

    def integer(self) -> int:
        number: int = _INT.unpack(self._take(4))[0]
        return number

    def long(self) -> int:
        number: int = _LONG.unpack(self._take(8))[0]
        return number

    def string(self) -> str:
        return self._text(self.short())

    def long_string(self) -> str:
        """The text of a statement. If the statements of the message are over the limit, raises `TooLarge` before it
        decodes them."""
        size, most = self._length(), self._text_bytes_max
        self._text_bytes += size
        if self._text_bytes > most:
            raise TooLarge(
                f"statements of {self._text_bytes} bytes are over limits.cql_statement_bytes_max ({most})",
                advice="bind large values instead of writing them into the text",
            )
        return self._text(size)

    def short_bytes(self) -> bytes:
        return self._take(self.short())

    def data(self) -> bytes | None:
        size = self.integer()
        return None if size < 0 else self._take(size)

    def value(self) -> BoundValue:
        size = self.integer()
        if size >= 0:
            return self._take(size)
        if size == -1:
            return None
        if size == -2:
            return UNSET
        raise BadProtocol(f"Invalid value length {size}: -1 is null, -2 is unset")

    def string_list(self) -> list[str]:
        return [self.string() for _ in range(self.short())]

    def string_map(self) -> dict[str, str]:
        return {self.string(): self.string() for _ in range(self.short())}

    def bytes_map(self) -> dict[str, bytes | None]:
        return {self.string(): self.data() for _ in range(self.short())}

    def _length(self) -> int:
        size = self.integer()
        if size < 0:
            raise BadProtocol(f"Invalid length {size}")
        return size

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise BadProtocol(f"Cannot decode string as UTF8: byte {error.start} of {size}") from None

    def _take(self, size: int) -> bytes:
        end = self.offset + size
        if end > len(self.body):
            raise BadProtocol(f"The message ends {end - len(self.body)} bytes too early")
        taken = self.body[self.offset : end]
        self.offset = end
        return taken


def byte(number: int) -> bytes:
    return bytes((number,))


def short(number: int) -> bytes:
    return _SHORT.pack(number)


def integer(number: int) -> bytes:
    return _INT.pack(number)


def string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def short_string(text: str) -> bytes:
    """A message for people, truncated to the length limit of a string."""
    data = text.encode()[:60_000]
    return string(data.decode(errors="ignore"))


def short_bytes(data: bytes) -> bytes:
    return _SHORT.pack(len(data)) + data


def value(data: bytes | None) -> bytes:
    return NULL_LENGTH if data is None else _INT.pack(len(data)) + data


def string_list(texts: Sequence[str]) -> bytes:
    return _SHORT.pack(len(texts)) + b"".join(string(text) for text in texts)


def string_multimap(entries: Mapping[str, Sequence[str]]) -> bytes:
    parts = [string(key) + string_list(texts) for key, texts in entries.items()]
    return _SHORT.pack(len(parts)) + b"".join(parts)


def bytes_map(entries: Mapping[str, bytes]) -> bytes:
    return _SHORT.pack(len(entries)) + b"".join(string(key) + value(data) for key, data in entries.items())


def inet(address: bytes, port: int) -> bytes:
    return byte(len(address)) + address + _INT.pack(port)

"""The tokens of one statement, read from left to right by all parts of the parser."""

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from ebla.cql.parse.lexer import LexToken, TokenKind, text_position, tokenize
from ebla.cql.parse.terms import BindMarker
from ebla.model.errors import BadSyntax, TooLarge
from ebla.options import DEFAULT_LIMITS

T = TypeVar("T")

OPERATORS_MAX = 1_000
"""Of one expression."""
NESTING_MAX = 64
MARKERS_MAX = (1 << 16) - 1

_RESERVED_WORDS = """
    ADD ALLOW ALTER AND APPLY ASC AUTHORIZE BATCH BEGIN BY COLUMNFAMILY CREATE DELETE DESC DESCRIBE DROP ENTRIES
    EXECUTE FROM FULL GRANT IF IN INDEX INFINITY INSERT INTO IS KEYSPACE LIMIT MATERIALIZED MODIFY NAN NORECURSIVE NOT
    NULL OF ON OR ORDER PRIMARY RENAME REPLACE REVOKE SCHEMA SELECT SET TABLE TO TOKEN TRUNCATE UNLOGGED UPDATE USE
    USING VIEW WHERE WITH
"""
RESERVED_WORDS = frozenset(_RESERVED_WORDS.split())
"""Words that can be names only in quotes."""


_PLAIN = re.compile(r"[a-z][a-z0-9_]*")


def quote_name(name: str) -> str:
    """A name, quoted if CQL requires it."""
    if _PLAIN.fullmatch(name) and name.upper() not in RESERVED_WORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


class UnsupportedFeature(Exception):
    """The statement uses a feature of CQL that this server does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class TokenStream:
    __slots__ = ("_at", "_expressions", "_nesting", "_operators", "_text", "_tokens", "markers")

    def __init__(self, text: str, tokens_max: int = DEFAULT_LIMITS.cql_tokens_max) -> None:
        self._text = text
        self._tokens = tokenize(text, tokens_max)
        self._at = 0
        self._nesting = 0
        self._expressions = 0
        self._operators = 0
        self.markers: list[BindMarker] = []

    # ---- peeking

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._tokens)

    @property
    def characters(self) -> int:
        """Of all tokens."""
        return sum([len(token.text) for token in self._tokens])

    @property
    def token(self) -> LexToken:
        return self._tokens[self._at]

    def peek(self, ahead: int = 1) -> LexToken:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def at_word(self, word: str) -> bool:
        return self._tokens[self._at].upper == word

    def at_sign(self, sign: str) -> bool:
        token = self._tokens[self._at]
        return token.kind is TokenKind.SIGN and token.text == sign

    def next_is_sign(self, sign: str) -> bool:
        token = self.peek()
        return token.kind is TokenKind.SIGN and token.text == sign

    # ---- consuming

    def take(self) -> LexToken:
        token = self._tokens[self._at]
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def accept_word(self, first: str, *others: str) -> bool:
        """Consumes these words if they come next, in this order."""
        if self._tokens[self._at].upper != first:
            return False
        for ahead, word in enumerate(others, 1):
            if self.peek(ahead).upper != word:
                return False
        self._at += 1 + len(others)
        return True

    def accept_sign(self, sign: str) -> bool:
        if not self.at_sign(sign):
            return False
        self._at += 1
        return True

    def expect_word(self, *words: str) -> None:
        for word in words:
            if not self.accept_word(word):
                self.fail(f"expecting {word}")

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            self.fail(f"expecting '{sign}'")

    def name(self, what: str = "a name") -> str:
        """An identifier, in lower case unless it is quoted."""
        token = self.token
        if token.kind is TokenKind.QUOTED_NAME:
            if not token.text:
                self.fail(f"expecting {what}, which cannot be empty")
            self._at += 1
            return token.text
        if self.at_marker:
            noun = what.split(" ", 1)[1]
            raise BadSyntax(f"{text_position(self._text, token.start)} Bind variables cannot be used for {noun} names")
        if token.kind is not TokenKind.NAME or token.upper in RESERVED_WORDS:
            raise BadSyntax(f"{self.failure().message}, expecting {what}")
        self._at += 1
        return token.text.lower()

    def string(self, what: str) -> str:
        if self.token.kind is not TokenKind.STRING:
            self.fail(f"expecting {what} in single quotes")
        return self.take().text

    def several(self, item: "Callable[[TokenStream], T]") -> tuple[T, ...]:
        """One or more, separated by commas."""
        found = [item(self)]
        while self.accept_sign(","):
            found.append(item(self))
        return tuple(found)

    def in_parentheses(self, item: "Callable[[TokenStream], T]") -> tuple[T, ...]:
        """One or more in parentheses, separated by commas."""
        self.expect_sign("(")
        found = self.several(item)
        self.expect_sign(")")
        return found

    @property
    def at_marker(self) -> bool:
        return self.token.kind is TokenKind.MARKER or (
            self.at_sign(":") and self.peek().kind in (TokenKind.NAME, TokenKind.QUOTED_NAME)
        )

    def marker(self) -> BindMarker:
        token = self.take()
        name = None if token.kind is TokenKind.MARKER else self._marker_name()
        if len(self.markers) == MARKERS_MAX:
            raise TooLarge(f"a statement has at most {MARKERS_MAX} bind markers")
        marker = BindMarker(len(self.markers), name)
        self.markers.append(marker)
        return marker

    def _marker_name(self) -> str:
        """Any word, reserved or not."""
        token = self.take()
        return token.text if token.kind is TokenKind.QUOTED_NAME else token.text.lower()

    def end(self) -> None:
        while self.accept_sign(";"):
            pass
        if self.token.kind is not TokenKind.END:
            self.fail("expecting the end of the statement")

    # ---- bounds and errors

    def enter(self) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise BadSyntax(f"{text_position(self._text, self.token.start)} nested more than {NESTING_MAX} deep")

    def leave(self) -> None:
        self._nesting -= 1

    def enter_expression(self) -> None:
        if self._expressions == 0:
            self._operators = 0
        self._expressions += 1

    def leave_expression(self) -> None:
        self._expressions -= 1

    def operator(self) -> str:
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise TooLarge(f"an expression has at most {OPERATORS_MAX} operators")
        return self.take().text

    def fail(self, expecting: str = "") -> NoReturn:
        raise self.failure(expecting)

    def failure(self, expecting: str = "") -> BadSyntax:
        token = self.token
        where = text_position(self._text, token.start)
        excerpt = token.text if token.kind is TokenKind.END else self._text[token.start :].split(None, 1)[0][:40]
        if token.kind is not TokenKind.END and token.kind is not TokenKind.STRING:
            excerpt = token.text[:40]
        if expecting:
            return BadSyntax(f"{where} mismatched input '{excerpt}' {expecting}")
        return BadSyntax(f"{where} no viable alternative at input '{excerpt}'")


def column_name(reader: TokenStream) -> str:
    return reader.name("a column")

"""Splits text into tokens, by one regular expression. It runs once for every statement that is not prepared.

Its time is linear in the text and it keeps no state per character: every repetition is possessive, so nothing is tried
twice, and what is opened and never closed ends the text at once instead of being tried again at the next character.
"""

import enum
import re

import msgspec

from ebla.model.errors import BadSyntax, TooLarge
from ebla.options import DEFAULT_LIMITS

DIGITS_MAX = 1_000
"""Of a number. Converting it takes quadratic time."""


class TokenKind(enum.IntEnum):
    NAME = 1
    """An identifier or keyword, as written."""
    QUOTED_NAME = 2
    STRING = 3
    INTEGER = 4
    DECIMAL = 5
    DURATION = 6
    UUID = 7
    BLOB = 8
    MARKER = 9
    """`?`. A named marker is a colon and a name; only the parser can distinguish its colon from that of a map."""
    SIGN = 10
    """Punctuation and operators."""
    END = 11


class LexToken(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A msgspec struct because a statement has dozens."""

    kind: TokenKind
    text: str
    """Without the quotes; doubled quotes inside are single."""
    start: int
    upper: str
    """A name in upper case, to compare with keywords; empty for a quoted name, which is never a keyword."""


_HEX = "[0-9a-fA-F]"
_UNIT = "(?:[yY]|[mM][oO]|[wW]|[dD]|[hH]|[mM][sS]|[mM]|[sS]|[uU][sS]|µ[sS]|[nN][sS])"
_COMMENT = r"/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/"
_SPACE = rf"(?:\s++|--[^\n]*+|//[^\n]*+|{_COMMENT})*+"
_PATTERN = re.compile(
    rf"""
    {_SPACE}(?:
      (?P<uuid>{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?!\w))
    | (?P<blob>0[xX]{_HEX}*+(?!\w))
    | (?P<duration>(?:\d++{_UNIT})++(?!\w)
        | P(?=[\dT])(?:\d++W|(?:\d++Y)?(?:\d++M)?(?:\d++D)?(?:T(?=\d)(?:\d++H)?(?:\d++M)?(?:\d++S)?)?)(?!\w)
        | P\d{{4}}-\d{{2}}-\d{{2}}T\d{{2}}:\d{{2}}:\d{{2}}(?!\w))
    | (?P<decimal>\d++(?:\.\d*+(?:[eE][+-]?\d++)?|[eE][+-]?\d++))
    | (?P<integer>\d++(?!\w))
    | (?P<name>[A-Za-z]\w*+)
    | "(?P<quoted>[^"]*+(?:""[^"]*+)*+)"
    | '(?P<string>[^']*+(?:''[^']*+)*+)'
    | \$\$(?P<dollar>[^$]*+(?:\$(?!\$)[^$]*+)*+)\$\$
    | (?P<open>/\*|\$\$|["'])
    | (?P<marker>\?)
    | (?P<sign><=|>=|!=|[-+*/%=<>(){{}}\[\],.;:])
    )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_SPACES = re.compile(_SPACE, re.DOTALL | re.ASCII)

_KINDS = {
    "uuid": TokenKind.UUID,
    "blob": TokenKind.BLOB,
    "duration": TokenKind.DURATION,
    "decimal": TokenKind.DECIMAL,
    "integer": TokenKind.INTEGER,
    "marker": TokenKind.MARKER,
    "sign": TokenKind.SIGN,
}


def text_position(text: str, start: int) -> str:
    """Lines count from 1, columns from 0, as in Cassandra's messages."""
    before = text[:start]
    line, column = before.count("\n") + 1, start - (before.rfind("\n") + 1)
    return f"line {line}:{column}"


def tokenize(text: str, tokens_max: int = DEFAULT_LIMITS.cql_tokens_max) -> list[LexToken]:
    """All tokens; the last one is END. Raises `BadSyntax` at the first character that starts no token, and `TooLarge`
    beyond a limit."""
    found: list[LexToken] = []
    position = 0
    match_at = _PATTERN.match
    while (match := match_at(text, position)) is not None:
        group = match.lastgroup
        assert group is not None
        if group == "name":
            name = match[group]
            found.append(LexToken(kind=TokenKind.NAME, text=name, start=match.start(group), upper=name.upper()))
        else:
            if group == "open":
                raise BadSyntax(f"{text_position(text, match.start(group))} '{match[group]}' is never closed")
            found.append(_token(group, match[group], match.start(group)))
        if len(found) > tokens_max:
            raise TooLarge(f"the statement has more tokens than limits.cql_tokens_max allows ({tokens_max})")
        position = match.end()
    rest = _SPACES.match(text, position)
    assert rest is not None
    if rest.end() != len(text):
        position = rest.end()
        raise BadSyntax(f"{text_position(text, position)} no viable alternative at character '{text[position]}'")
    found.append(LexToken(kind=TokenKind.END, text="<EOF>", start=len(text), upper=""))
    return found


def _token(group: str, text: str, start: int) -> LexToken:
    match group:
        case "quoted":
            return LexToken(kind=TokenKind.QUOTED_NAME, text=text.replace('""', '"'), start=start - 1, upper="")
        case "string":
            return LexToken(kind=TokenKind.STRING, text=text.replace("''", "'"), start=start - 1, upper="")
        case "dollar":
            return LexToken(kind=TokenKind.STRING, text=text, start=start - 2, upper="")
        case "integer" | "decimal" | "duration" if len(text) > DIGITS_MAX:
            raise TooLarge(f"a number of {len(text)} digits is over the limit of {DIGITS_MAX}")
        case "blob":
            return LexToken(kind=TokenKind.BLOB, text=text[2:], start=start, upper="")
        case _:
            return LexToken(kind=_KINDS[group], text=text, start=start, upper="")

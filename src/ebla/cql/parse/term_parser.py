"""Parses terms: literals, markers, collections, calls, arithmetic."""

from ebla.cql.parse.lexer import LexToken, TokenKind
from ebla.cql.parse.terms import (
    Arithmetic,
    BlobLiteral,
    BooleanLiteral,
    ColumnName,
    DurationLiteral,
    FunctionCall,
    ListLiteral,
    NullLiteral,
    NumberLiteral,
    SetOrMapLiteral,
    StringLiteral,
    Term,
    TupleLiteral,
    TypeHint,
    UuidLiteral,
)
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature
from ebla.model.cql_types import SCALARS, CqlType, parse_type

_TYPE_WORDS = frozenset({"LIST", "SET", "MAP", "TUPLE", "FROZEN"})
_ADDITIVE = ("+", "-")
_MULTIPLICATIVE = ("*", "/", "%")


def term(reader: TokenStream) -> Term:
    left = _product(reader)
    while reader.token.kind is TokenKind.SIGN and reader.token.text in _ADDITIVE:
        operator = reader.take().text
        left = Arithmetic(operator, left, _product(reader))
    return left


def _product(reader: TokenStream) -> Term:
    left = simple_term(reader)
    while reader.token.kind is TokenKind.SIGN and reader.token.text in _MULTIPLICATIVE:
        operator = reader.take().text
        left = Arithmetic(operator, left, simple_term(reader))
    return left


def simple_term(reader: TokenStream) -> Term:
    """One operand."""
    token = reader.token
    match token.kind:
        case TokenKind.MARKER:
            return reader.marker()
        case TokenKind.STRING:
            return StringLiteral(reader.take().text)
        case TokenKind.INTEGER:
            return NumberLiteral(reader.take().text, is_integer=True)
        case TokenKind.DECIMAL:
            return NumberLiteral(reader.take().text, is_integer=False)
        case TokenKind.UUID:
            return UuidLiteral(reader.take().text)
        case TokenKind.BLOB:
            return BlobLiteral(reader.take().text)
        case TokenKind.DURATION:
            return DurationLiteral(reader.take().text)
        case TokenKind.NAME:
            return _word_term(reader, token)
        case TokenKind.SIGN:
            return _sign_term(reader, token)
        case _:
            raise reader.failure()


def _word_term(reader: TokenStream, token: LexToken) -> Term:
    match token.upper:
        case "NULL":
            reader.take()
            return NullLiteral()
        case "TRUE" | "FALSE" if not reader.next_is_sign("("):
            reader.take()
            return BooleanLiteral(token.upper == "TRUE")
        case "NAN" | "INFINITY":
            reader.take()
            return NumberLiteral(token.upper.capitalize() if token.upper != "NAN" else "NaN", is_integer=False)
        case "CAST" if reader.next_is_sign("("):
            raise UnsupportedFeature("CAST")
        case _:
            return call(reader)


def _sign_term(reader: TokenStream, token: LexToken) -> Term:
    reader.enter()
    try:
        match token.text:
            case "[":
                reader.take()
                return ListLiteral(_elements(reader, "]"))
            case "{":
                return _braces(reader)
            case "(":
                return _parentheses(reader)
            case ":" if reader.at_marker:
                return reader.marker()
            case "-":
                reader.take()
                return _negated(simple_term(reader))
            case _:
                reader.fail()
    finally:
        reader.leave()


def _negated(operand: Term) -> Term:
    match operand:
        case NumberLiteral(text=text, is_integer=is_integer) if not text.startswith("-"):
            return NumberLiteral(f"-{text}", is_integer)
        case DurationLiteral(text=text) if not text.startswith("-"):
            return DurationLiteral(f"-{text}")
        case _:
            return Arithmetic("-", NumberLiteral("0", is_integer=True), operand)


def _elements(reader: TokenStream, closing: str) -> tuple[Term, ...]:
    if reader.accept_sign(closing):
        return ()
    found = [term(reader)]
    while reader.accept_sign(","):
        found.append(term(reader))
    reader.expect_sign(closing)
    return tuple(found)


def _braces(reader: TokenStream) -> Term:
    reader.expect_sign("{")
    pairs: list[tuple[Term, Term | None]] = []
    if reader.accept_sign("}"):
        return SetOrMapLiteral(())
    if reader.token.kind is TokenKind.NAME and reader.next_is_sign(":") and not _is_constant(reader.token):
        raise UnsupportedFeature("user-defined types")
    while True:
        key = term(reader)
        pairs.append((key, _map_value(reader)))
        if not reader.accept_sign(","):
            break
    reader.expect_sign("}")
    if len({value is None for _, value in pairs}) > 1:
        reader.fail("after a literal that is half a set and half a map")
    return SetOrMapLiteral(tuple(pairs))


def _map_value(reader: TokenStream) -> Term | None:
    if reader.accept_sign(":"):
        return term(reader)
    return None


def _is_constant(token: LexToken) -> bool:
    return token.upper in ("TRUE", "FALSE", "NULL", "NAN", "INFINITY")


def _parentheses(reader: TokenStream) -> Term:
    reader.expect_sign("(")
    if _at_type(reader):
        hinted = type_name(reader)
        reader.expect_sign(")")
        return TypeHint(hinted, simple_term(reader))
    elements = _elements(reader, ")")
    if not elements:
        reader.fail("after an empty tuple")
    return TupleLiteral(elements)


def _at_type(reader: TokenStream) -> bool:
    token, following = reader.token, reader.peek()
    if token.kind is not TokenKind.NAME or following.kind is not TokenKind.SIGN:
        return False
    if token.upper in _TYPE_WORDS:
        return following.text == "<"
    return token.text.lower() in SCALARS and following.text == ")"


def type_name(reader: TokenStream) -> CqlType:
    """A type, up to its last closing bracket."""
    if reader.token.kind is TokenKind.STRING:
        raise UnsupportedFeature(f"the custom type {reader.token.text!r}")
    words: list[str] = []
    depth = 0
    while True:
        token = reader.token
        if token.kind is TokenKind.NAME:
            if token.upper == "COUNTER":
                raise UnsupportedFeature("counters")
            if token.upper == "VECTOR":
                raise UnsupportedFeature("vectors")
            words.append(token.text)
        elif token.kind is TokenKind.SIGN and token.text in ("<", ">", ",") and words:
            words.append(token.text)
            depth += {"<": 1, ">": -1, ",": 0}[token.text]
        elif token.kind is TokenKind.QUOTED_NAME:
            raise UnsupportedFeature("user-defined types")
        else:
            reader.fail("expecting a type")
        reader.take()
        if depth == 0 and not reader.at_sign("<"):
            return parse_type(" ".join(words))


def call(reader: TokenStream) -> FunctionCall:
    """`name(…)` or `keyspace.name(…)`, also `token(…)`."""
    if reader.accept_word("TOKEN"):
        name = "token"
    else:
        name = reader.name("a value")
        if reader.at_sign(".") and reader.peek().kind in (TokenKind.NAME, TokenKind.QUOTED_NAME):
            reader.take()
            name = f"{name}.{reader.name('a function')}"
    if not reader.at_sign("("):
        reader.fail(f"after '{name}', which is no value")
    return FunctionCall(name, arguments(reader))


def arguments(reader: TokenStream) -> tuple[Term | ColumnName, ...]:
    reader.expect_sign("(")
    reader.enter()
    if reader.accept_sign(")"):
        reader.leave()
        return ()
    found = [argument(reader)]
    while reader.accept_sign(","):
        found.append(argument(reader))
    reader.expect_sign(")")
    reader.leave()
    return tuple(found)


def argument(reader: TokenStream) -> Term | ColumnName:
    """A term, or a column if no bracket follows its name."""
    token = reader.token
    if token.kind is TokenKind.QUOTED_NAME and not reader.next_is_sign("("):
        return ColumnName(reader.name())
    plain = token.kind is TokenKind.NAME and not _is_constant(token) and token.upper != "TOKEN"
    if plain and not reader.next_is_sign("(") and not reader.next_is_sign("."):
        return ColumnName(reader.name())
    return term(reader)

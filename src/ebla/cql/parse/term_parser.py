"""Parses terms: literals, markers, collections, calls, arithmetic."""

from collections.abc import Callable

from ebla.cql.parse.lexer import LexToken, TokenKind
from ebla.cql.parse.terms import (
    Arithmetic,
    ColumnName,
    FunctionCall,
    ListLiteral,
    Literal,
    LiteralKind,
    NullLiteral,
    SetOrMapLiteral,
    Term,
    TupleLiteral,
    TypeHint,
)
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature
from ebla.model.cql_types import SCALARS, CqlType, parse_type
from ebla.model.errors import TooLarge

TYPE_NESTING_MAX = 32
COLUMN_ARITHMETIC = "arithmetic on columns"
COLUMN_ELEMENTS = "selecting an element or field of a column"

_TYPE_WORDS = frozenset({"LIST", "SET", "MAP", "TUPLE", "FROZEN"})
_ADDITIVE = ("+", "-")
_MULTIPLICATIVE = ("*", "/", "%")
_LITERALS = {
    TokenKind.STRING: LiteralKind.STRING,
    TokenKind.INTEGER: LiteralKind.INTEGER,
    TokenKind.DECIMAL: LiteralKind.FLOAT,
    TokenKind.UUID: LiteralKind.UUID,
    TokenKind.BLOB: LiteralKind.HEX,
    TokenKind.DURATION: LiteralKind.DURATION,
}
_CONSTANTS: dict[str, Term] = {
    "NULL": NullLiteral(),
    "TRUE": Literal(LiteralKind.BOOLEAN, "true"),
    "FALSE": Literal(LiteralKind.BOOLEAN, "false"),
    "NAN": Literal(LiteralKind.FLOAT, "NaN"),
    "INFINITY": Literal(LiteralKind.FLOAT, "Infinity"),
}


def term(reader: TokenStream, first: Term | None = None) -> Term:
    """`first` is the first operand, if it is parsed already."""
    reader.enter_expression()
    found = _chain(reader, _ADDITIVE, _product, _product(reader, first))
    reader.leave_expression()
    return found


def _product(reader: TokenStream, first: Term | None = None) -> Term:
    return _chain(reader, _MULTIPLICATIVE, simple_term, first or simple_term(reader))


def _chain(
    reader: TokenStream, operators: tuple[str, ...], operand: Callable[[TokenStream], Term], first: Term
) -> Term:
    rest: list[tuple[str, Term]] = []
    while reader.token.kind is TokenKind.SIGN and reader.token.text in operators:
        rest.append((reader.operator(), operand(reader)))
    return Arithmetic(first, tuple(rest)) if rest else first


def simple_term(reader: TokenStream) -> Term:
    """One operand."""
    token = reader.token
    kind = _LITERALS.get(token.kind)
    if kind is not None:
        return Literal(kind, reader.take().text)
    match token.kind:
        case TokenKind.MARKER:
            return reader.marker()
        case TokenKind.NAME:
            return _word_term(reader, token)
        case TokenKind.SIGN:
            return _sign_term(reader, token)
        case _:
            raise reader.failure()


def _word_term(reader: TokenStream, token: LexToken) -> Term:
    constant = _CONSTANTS.get(token.upper)
    if constant is not None and not (token.upper in ("TRUE", "FALSE") and reader.next_is_sign("(")):
        reader.take()
        return constant
    if token.upper == "CAST" and reader.next_is_sign("("):
        raise UnsupportedFeature("CAST")
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
    signed = (LiteralKind.INTEGER, LiteralKind.FLOAT, LiteralKind.DURATION)
    if isinstance(operand, Literal) and operand.kind in signed and not operand.text.startswith("-"):
        return Literal(operand.kind, f"-{operand.text}")
    return Arithmetic(Literal(LiteralKind.INTEGER, "0"), (("-", operand),))


def _elements(reader: TokenStream, closing: str) -> tuple[Term, ...]:
    if reader.accept_sign(closing):
        return ()
    found = reader.several(term)
    reader.expect_sign(closing)
    return found


def _braces(reader: TokenStream) -> Term:
    reader.expect_sign("{")
    if reader.accept_sign("}"):
        return SetOrMapLiteral(())
    if reader.token.kind is TokenKind.NAME and reader.next_is_sign(":") and not is_constant_word(reader.token):
        raise UnsupportedFeature("user-defined types")
    pairs = reader.several(lambda _: (term(reader), term(reader) if reader.accept_sign(":") else None))
    reader.expect_sign("}")
    if len({value is None for _, value in pairs}) > 1:
        reader.fail("after a literal that is half a set and half a map")
    return SetOrMapLiteral(pairs)


def is_constant_word(token: LexToken) -> bool:
    return token.upper in _CONSTANTS


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
            if depth > TYPE_NESTING_MAX:
                raise TooLarge(f"a type is nested more than {TYPE_NESTING_MAX} deep")
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
    reader.enter()
    if reader.next_is_sign(")"):
        reader.expect_sign("(")
        reader.expect_sign(")")
        found: tuple[Term | ColumnName, ...] = ()
    else:
        found = reader.in_parentheses(argument)
    reader.leave()
    return found


def argument(reader: TokenStream) -> Term | ColumnName:
    """A term, or a column if no bracket follows its name."""
    is_call = reader.next_is_sign("(") or (reader.next_is_sign(".") and reader.token.kind is TokenKind.NAME)
    if is_call or not is_column_name(reader.token):
        return term(reader)
    column = ColumnName(reader.name())
    if reader.at_sign("["):
        raise UnsupportedFeature(COLUMN_ELEMENTS)
    if at_operator(reader):
        raise UnsupportedFeature(COLUMN_ARITHMETIC)
    return column


def is_column_name(token: LexToken) -> bool:
    """Whether a token can be the name of a column; followed by a bracket it is that of a function."""
    plain = token.kind is TokenKind.NAME and not is_constant_word(token) and token.upper != "TOKEN"
    return plain or token.kind is TokenKind.QUOTED_NAME


def at_operator(reader: TokenStream) -> bool:
    return reader.token.kind is TokenKind.SIGN and reader.token.text in (*_ADDITIVE, *_MULTIPLICATIVE)

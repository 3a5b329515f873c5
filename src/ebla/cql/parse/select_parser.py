"""Parses SELECT."""

from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.statements import Ordering, SelectItem, SelectStatement
from ebla.cql.parse.term_parser import (
    COLUMN_ARITHMETIC,
    COLUMN_ELEMENTS,
    at_operator,
    call,
    is_column_name,
    is_constant_word,
    simple_term,
)
from ebla.cql.parse.terms import ColumnName, FunctionCall, Literal, LiteralKind, Term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature, column_name
from ebla.cql.parse.where_parser import table_name, using, where
from ebla.model.errors import TooLarge

SELECTORS_MAX = 1_000
"""As many as a table may have columns: each row of the result has a value for each selector."""


def select(reader: TokenStream) -> SelectStatement:
    """After the word SELECT."""
    if reader.at_word("JSON") and not _is_column(reader):
        raise UnsupportedFeature("SELECT JSON")
    distinct = reader.at_word("DISTINCT") and not _is_column(reader)
    if distinct:
        reader.take()
    selectors = () if reader.accept_sign("*") else reader.several(_selector)
    if len(selectors) > SELECTORS_MAX:
        raise TooLarge(f"a SELECT has {len(selectors)} selectors; at most {SELECTORS_MAX} are allowed")
    reader.expect_word("FROM")
    table = table_name(reader)
    relations = where(reader) if reader.accept_word("WHERE") else ()
    if reader.at_word("GROUP"):
        raise UnsupportedFeature("GROUP BY")
    order_by: tuple[Ordering, ...] = ()
    if reader.accept_word("ORDER"):
        reader.expect_word("BY")
        order_by = reader.several(ordering)
    per_partition: Term | None = None
    limit: Term | None = None
    if reader.accept_word("PER"):
        reader.expect_word("PARTITION", "LIMIT")
        per_partition = simple_term(reader)
    if reader.accept_word("LIMIT"):
        limit = simple_term(reader)
    allow_filtering = bypass_cache = False
    while reader.at_word("ALLOW") or reader.at_word("BYPASS"):
        if reader.accept_word("ALLOW"):
            reader.expect_word("FILTERING")
            allow_filtering = True
        else:
            reader.expect_word("BYPASS", "CACHE")
            bypass_cache = True
    return SelectStatement(
        table=table,
        selectors=selectors,
        distinct=distinct,
        where=relations,
        order_by=order_by,
        per_partition_limit=per_partition,
        limit=limit,
        allow_filtering=allow_filtering,
        bypass_cache=bypass_cache,
        using=using(reader, "TIMEOUT"),
    )


def _is_column(reader: TokenStream) -> bool:
    """Whether a possible keyword is a column name here: `SELECT json FROM`, `SELECT distinct, a FROM`."""
    following = reader.peek()
    return following.upper in ("FROM", "AS") or (
        following.kind is TokenKind.SIGN and following.text in (",", "(", ".", "[")
    )


def _selector(reader: TokenStream) -> SelectItem:
    item = _selected(reader)
    if at_operator(reader):
        raise UnsupportedFeature(COLUMN_ARITHMETIC)
    return SelectItem(item, reader.name("an alias") if reader.accept_word("AS") else None)


def _selected(reader: TokenStream) -> Term | ColumnName:
    token = reader.token
    if token.upper == "CAST" and reader.next_is_sign("("):
        raise UnsupportedFeature("CAST")
    if token.upper == "COUNT" and reader.next_is_sign("("):
        return _count(reader)
    if token.text == "-" and is_column_name(reader.peek()):
        raise UnsupportedFeature(COLUMN_ARITHMETIC)
    if token.kind not in (TokenKind.NAME, TokenKind.QUOTED_NAME) or is_constant_word(token):
        return simple_term(reader)
    if reader.next_is_sign("(") or (reader.next_is_sign(".") and reader.peek(3).text == "("):
        return call(reader)
    column = column_name(reader)
    if reader.at_sign("[") or reader.at_sign("."):
        raise UnsupportedFeature(COLUMN_ELEMENTS)
    return ColumnName(column)


def _count(reader: TokenStream) -> FunctionCall:
    """`count(*)` and `count(1)` count rows, `count(column)` counts its values."""
    following = reader.peek(2)
    if following.text in ("*", "1") and following.kind in (TokenKind.SIGN, TokenKind.INTEGER):
        for _ in range(3):
            reader.take()
        reader.expect_sign(")")
        return FunctionCall("count", ())
    made = call(reader)
    numbers = (LiteralKind.INTEGER, LiteralKind.FLOAT)
    if len(made.arguments) != 1 or (isinstance(made.arguments[0], Literal) and made.arguments[0].kind in numbers):
        reader.fail("after count(), which takes *, 1 or one column")
    return made


def ordering(reader: TokenStream) -> Ordering:
    column = column_name(reader)
    if reader.at_word("ANN"):
        raise UnsupportedFeature("ORDER BY … ANN OF")
    descending = reader.accept_word("DESC")
    if not descending:
        reader.accept_word("ASC")
    return Ordering(column, descending)

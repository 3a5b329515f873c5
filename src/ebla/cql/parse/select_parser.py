"""Parses SELECT."""

from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.statements import (
    Ordering,
    SelectedColumn,
    SelectedFunction,
    SelectedTerm,
    Selector,
    SelectStatement,
)
from ebla.cql.parse.term_parser import call, simple_term
from ebla.cql.parse.terms import FunctionCall, NumberLiteral, Term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature
from ebla.cql.parse.where_parser import table_name, using, where


def select(reader: TokenStream) -> SelectStatement:
    """After the word SELECT."""
    if reader.at_word("JSON") and not _is_column(reader):
        raise UnsupportedFeature("SELECT JSON")
    distinct = reader.at_word("DISTINCT") and not _is_column(reader)
    if distinct:
        reader.take()
    selectors = _selectors(reader)
    reader.expect_word("FROM")
    table = table_name(reader)
    relations = where(reader) if reader.accept_word("WHERE") else ()
    if reader.at_word("GROUP"):
        raise UnsupportedFeature("GROUP BY")
    order_by = _order_by(reader) if reader.accept_word("ORDER") else ()
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


def _selectors(reader: TokenStream) -> tuple[Selector, ...]:
    if reader.accept_sign("*"):
        return ()
    found = [_selector(reader)]
    while reader.accept_sign(","):
        found.append(_selector(reader))
    return tuple(found)


def _selector(reader: TokenStream) -> Selector:
    token = reader.token
    if token.upper == "CAST" and reader.next_is_sign("("):
        raise UnsupportedFeature("CAST")
    if token.upper == "COUNT" and reader.next_is_sign("("):
        counted = _count(reader)
        return SelectedFunction(counted, _alias(reader))
    is_name = token.kind in (TokenKind.NAME, TokenKind.QUOTED_NAME)
    if is_name and token.upper not in ("TRUE", "FALSE", "NULL", "NAN", "INFINITY"):
        if reader.next_is_sign("(") or (reader.next_is_sign(".") and reader.peek(3).text == "("):
            made = call(reader)
            return SelectedFunction(made, _alias(reader))
        column = reader.name("a column")
        if reader.at_sign("[") or reader.at_sign("."):
            raise UnsupportedFeature("selecting an element or field of a column")
        return SelectedColumn(column, _alias(reader))
    chosen = simple_term(reader)
    return SelectedTerm(chosen, _alias(reader))


def _count(reader: TokenStream) -> FunctionCall:
    """`count(*)` and `count(1)` count rows, `count(column)` counts its values."""
    following = reader.peek(2)
    if following.text in ("*", "1") and following.kind in (TokenKind.SIGN, TokenKind.INTEGER):
        for _ in range(3):
            reader.take()
        reader.expect_sign(")")
        return FunctionCall("count", ())
    made = call(reader)
    if len(made.arguments) != 1 or isinstance(made.arguments[0], NumberLiteral):
        reader.fail("after count(), which takes *, 1 or one column")
    return made


def _alias(reader: TokenStream) -> str | None:
    return reader.name("an alias") if reader.accept_word("AS") else None


def _order_by(reader: TokenStream) -> tuple[Ordering, ...]:
    reader.expect_word("BY")
    found = [ordering(reader)]
    while reader.accept_sign(","):
        found.append(ordering(reader))
    return tuple(found)


def ordering(reader: TokenStream) -> Ordering:
    column = reader.name("a column")
    if reader.at_word("ANN"):
        raise UnsupportedFeature("ORDER BY … ANN OF")
    descending = reader.accept_word("DESC")
    if not descending:
        reader.accept_word("ASC")
    return Ordering(column, descending)

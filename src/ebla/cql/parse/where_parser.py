"""Parses table names, USING and WHERE, which several statements share."""

from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.statements import (
    ColumnRelation,
    ElementRelation,
    MultiColumnRelation,
    Operator,
    Relation,
    TableName,
    TokenRelation,
    UsingClause,
)
from ebla.cql.parse.term_parser import simple_term, term
from ebla.cql.parse.terms import BindMarker, Term, TupleLiteral
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature, column_name

_SIGNS = {
    sign.value: sign
    for sign in (
        Operator.EQUAL,
        Operator.NOT_EQUAL,
        Operator.LESS,
        Operator.AT_MOST,
        Operator.GREATER,
        Operator.AT_LEAST,
    )
}


def table_name(reader: TokenStream) -> TableName:
    first = reader.name("a table")
    if reader.accept_sign("."):
        return TableName(first, reader.name("a table"))
    return TableName(None, first)


def using(reader: TokenStream, *allowed: str) -> UsingClause:
    """`USING a AND b`, if present."""
    if not reader.accept_word("USING"):
        return UsingClause()
    found: dict[str, Term] = {}
    while True:
        word = reader.token.upper
        if word not in allowed:
            reader.fail(f"expecting {' or '.join(allowed)}")
        reader.take()
        if word in found:
            reader.fail(f"after a second {word}")
        found[word] = simple_term(reader)
        if not reader.accept_word("AND"):
            return UsingClause(found.get("TIMESTAMP"), found.get("TTL"), found.get("TIMEOUT"))


def where(reader: TokenStream) -> tuple[Relation, ...]:
    """After the word WHERE."""
    relations = [*_relation(reader)]
    while reader.accept_word("AND"):
        relations += _relation(reader)
    if reader.at_word("OR"):
        reader.fail("expecting AND: conditions are joined by AND alone")
    return tuple(relations)


def _relation(reader: TokenStream) -> tuple[Relation, ...]:
    if reader.at_word("TOKEN") and reader.next_is_sign("("):
        return (_token_relation(reader),)
    if reader.at_sign("("):
        return _in_parentheses(reader)
    return (_column_relation(reader),)


def _in_parentheses(reader: TokenStream) -> tuple[Relation, ...]:
    """A relation of several columns, or a relation in parentheses."""
    if reader.peek().kind in (TokenKind.NAME, TokenKind.QUOTED_NAME) and reader.peek(2).text in (",", ")"):
        return (_multi_column_relation(reader),)
    reader.take()
    reader.enter()
    inside = where(reader)
    reader.leave()
    reader.expect_sign(")")
    return inside


def _token_relation(reader: TokenStream) -> TokenRelation:
    reader.expect_word("TOKEN")
    columns = reader.in_parentheses(column_name)
    return TokenRelation(columns, _comparison(reader), term(reader))


def _multi_column_relation(reader: TokenStream) -> MultiColumnRelation:
    columns = reader.in_parentheses(column_name)
    if reader.accept_word("IN"):
        marker, values = _in_values(reader)
        return MultiColumnRelation(columns=columns, operator=Operator.IN, value=marker, values=values)
    operator = _comparison(reader)
    value = simple_term(reader)
    if not isinstance(value, TupleLiteral | BindMarker):
        reader.fail("after a value that is no tuple")
    return MultiColumnRelation(columns=columns, operator=operator, value=value)


def _column_relation(reader: TokenStream) -> Relation:
    column = column_name(reader)
    if reader.accept_sign("["):
        key = term(reader)
        reader.expect_sign("]")
        return ElementRelation(column=column, key=key, operator=_comparison(reader), value=term(reader))
    if reader.accept_word("IN"):
        marker, values = _in_values(reader)
        return ColumnRelation(column=column, operator=Operator.IN, value=marker, values=values)
    if reader.accept_word("CONTAINS"):
        operator = Operator.CONTAINS_KEY if reader.accept_word("KEY") else Operator.CONTAINS
        return ColumnRelation(column=column, operator=operator, value=term(reader))
    if reader.accept_word("LIKE"):
        return ColumnRelation(column=column, operator=Operator.LIKE, value=term(reader))
    if reader.accept_word("IS"):
        reader.expect_word("NOT", "NULL")
        return ColumnRelation(column=column, operator=Operator.IS_NOT_NULL)
    if reader.at_word("NOT"):
        raise UnsupportedFeature("NOT IN and NOT CONTAINS")
    if reader.at_word("BETWEEN"):
        raise UnsupportedFeature("BETWEEN")
    return ColumnRelation(column=column, operator=_comparison(reader), value=term(reader))


def _in_values(reader: TokenStream) -> tuple[BindMarker | None, tuple[Term, ...] | None]:
    """One marker for the whole list, or its values."""
    if reader.at_marker:
        return reader.marker(), None
    if reader.at_sign("(") and reader.next_is_sign(")"):
        reader.take()
        reader.take()
        return None, ()
    return None, reader.in_parentheses(term)


def _comparison(reader: TokenStream) -> Operator:
    token = reader.token
    operator = _SIGNS.get(token.text) if token.kind is TokenKind.SIGN else None
    if operator is None:
        reader.fail("expecting an operator")
    reader.take()
    return operator

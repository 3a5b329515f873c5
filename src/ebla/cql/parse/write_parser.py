"""Parses INSERT, UPDATE, DELETE, BATCH and TRUNCATE."""

from collections import Counter
from collections.abc import Callable, Sequence

from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.statements import (
    Assignment,
    AssignmentKind,
    BatchStatement,
    DeletedColumn,
    DeleteStatement,
    InsertStatement,
    Modification,
    TruncateStatement,
    UpdateStatement,
)
from ebla.cql.parse.term_parser import simple_term, term
from ebla.cql.parse.terms import Term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature, column_name
from ebla.cql.parse.where_parser import table_name, using, where
from ebla.model.errors import TooLarge
from ebla.wire.cql.frames import BatchKind

BATCH_STATEMENTS_MAX = 10_000
LIGHTWEIGHT = "IF conditions (lightweight transactions)"


def insert(reader: TokenStream) -> InsertStatement:
    """After the word INSERT."""
    reader.expect_word("INTO")
    table = table_name(reader)
    if reader.at_word("JSON"):
        raise UnsupportedFeature("INSERT JSON")
    columns = reader.in_parentheses(column_name)
    reader.expect_word("VALUES")
    values = reader.in_parentheses(term)
    _refuse_condition(reader)
    times = using(reader, "TIMESTAMP", "TTL", "TIMEOUT")
    _refuse_condition(reader)
    return InsertStatement(table=table, columns=columns, values=values, using=times)


def update(reader: TokenStream) -> UpdateStatement:
    table = table_name(reader)
    times = using(reader, "TIMESTAMP", "TTL", "TIMEOUT")
    reader.expect_word("SET")
    assignments = reader.several(_assignment)
    _check_once(reader, assignments)
    reader.expect_word("WHERE")
    relations = where(reader)
    _refuse_condition(reader)
    return UpdateStatement(table=table, assignments=assignments, where=relations, using=times)


def _check_once(reader: TokenStream, assignments: Sequence[Assignment]) -> None:
    """A column that is assigned as a whole allows no other change in the statement."""
    changes = Counter(one.column for one in assignments)
    for one in assignments:
        if one.kind is AssignmentKind.COLUMN and changes[one.column] > 1:
            reader.fail(f"after multiple incompatible settings of column {one.column}")


_SIGNS = (("+", AssignmentKind.APPEND), ("-", AssignmentKind.REMOVE))


def _assignment(reader: TokenStream) -> Assignment:
    column = column_name(reader)
    key = _element_key(reader)
    if key is not None:
        reader.expect_sign("=")
        return Assignment(column=column, kind=AssignmentKind.ELEMENT, value=term(reader), key=key)
    for sign, kind in _SIGNS:
        if reader.at_sign(sign) and reader.next_is_sign("="):
            reader.take()
            reader.take()
            return Assignment(column=column, kind=kind, value=term(reader))
    reader.expect_sign("=")
    return _right_side(reader, column)


def _element_key(reader: TokenStream) -> Term | None:
    """`[key]` after a column, if present."""
    if reader.at_sign("."):
        raise UnsupportedFeature("fields of user-defined types")
    if not reader.accept_sign("["):
        return None
    key = term(reader)
    reader.expect_sign("]")
    return key


def _right_side(reader: TokenStream, column: str) -> Assignment:
    """`c = c + x`, `c = c - x`, `c = x + c` or `c = x`."""
    token = reader.token
    if token.kind in (TokenKind.NAME, TokenKind.QUOTED_NAME) and _names(reader, column):
        for sign, kind in _SIGNS:
            if reader.next_is_sign(sign):
                reader.take()
                reader.take()
                return Assignment(column=column, kind=kind, value=simple_term(reader))
    first = simple_term(reader)
    if (
        reader.at_sign("+")
        and reader.peek().kind in (TokenKind.NAME, TokenKind.QUOTED_NAME)
        and reader.peek(2).text != "("
    ):
        reader.take()
        other = column_name(reader)
        if other != column:
            reader.fail(f"after '{other}', which is not the column that is set")
        return Assignment(column=column, kind=AssignmentKind.PREPEND, value=first)
    return Assignment(column=column, kind=AssignmentKind.COLUMN, value=term(reader, first))


def _names(reader: TokenStream, column: str) -> bool:
    token = reader.token
    return (token.text if token.kind is TokenKind.QUOTED_NAME else token.text.lower()) == column


def delete(reader: TokenStream) -> DeleteStatement:
    columns = () if reader.at_word("FROM") else reader.several(_deleted)
    reader.expect_word("FROM")
    table = table_name(reader)
    times = using(reader, "TIMESTAMP", "TIMEOUT")
    reader.expect_word("WHERE")
    relations = where(reader)
    _refuse_condition(reader)
    return DeleteStatement(table=table, columns=columns, where=relations, using=times)


def _deleted(reader: TokenStream) -> DeletedColumn:
    return DeletedColumn(column_name(reader), _element_key(reader))


def _refuse_condition(reader: TokenStream) -> None:
    if reader.at_word("IF"):
        raise UnsupportedFeature(LIGHTWEIGHT)


def batch(reader: TokenStream) -> BatchStatement:
    """After BEGIN."""
    kind = BatchKind.LOGGED
    if reader.accept_word("UNLOGGED"):
        kind = BatchKind.UNLOGGED
    elif reader.at_word("COUNTER"):
        raise UnsupportedFeature("counters")
    else:
        reader.accept_word("LOGGED")
    reader.expect_word("BATCH")
    times = using(reader, "TIMESTAMP", "TIMEOUT")
    found: list[Modification] = []
    while not reader.at_word("APPLY"):
        if len(found) == BATCH_STATEMENTS_MAX:
            raise TooLarge(f"a batch has at most {BATCH_STATEMENTS_MAX} statements")
        found.append(_modification(reader))
        while reader.accept_sign(";"):
            pass
    reader.expect_word("APPLY", "BATCH")
    return BatchStatement(kind, tuple(found), times)


_MODIFICATIONS: dict[str, Callable[[TokenStream], Modification]] = {
    "INSERT": insert,
    "UPDATE": update,
    "DELETE": delete,
}


def _modification(reader: TokenStream) -> Modification:
    parse = _MODIFICATIONS.get(reader.token.upper)
    if parse is None:
        raise reader.failure("expecting INSERT, UPDATE, DELETE or APPLY BATCH")
    reader.take()
    return parse(reader)


def truncate(reader: TokenStream) -> TruncateStatement:
    if not reader.accept_word("TABLE"):
        reader.accept_word("COLUMNFAMILY")
    return TruncateStatement(table_name(reader), using(reader, "TIMEOUT"))

"""Parses INSERT, UPDATE, DELETE, BATCH and TRUNCATE."""

from collections import Counter
from collections.abc import Sequence

from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.statements import (
    AssignColumn,
    AssignElement,
    Assignment,
    BatchStatement,
    ChangeCollection,
    CollectionChange,
    DeletedColumn,
    DeleteStatement,
    InsertStatement,
    Modification,
    TruncateStatement,
    UpdateStatement,
    UsingClause,
)
from ebla.cql.parse.term_parser import simple_term, term
from ebla.cql.parse.terms import Arithmetic, Term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature
from ebla.cql.parse.where_parser import table_name, using, where
from ebla.wire.cql.frames import BatchKind

LIGHTWEIGHT = "IF conditions (lightweight transactions)"


def insert(reader: TokenStream) -> InsertStatement:
    """After the word INSERT."""
    reader.expect_word("INTO")
    table = table_name(reader)
    if reader.at_word("JSON"):
        raise UnsupportedFeature("INSERT JSON")
    reader.expect_sign("(")
    columns = [reader.name("a column")]
    while reader.accept_sign(","):
        columns.append(reader.name("a column"))
    reader.expect_sign(")")
    reader.expect_word("VALUES")
    reader.expect_sign("(")
    values = [term(reader)]
    while reader.accept_sign(","):
        values.append(term(reader))
    reader.expect_sign(")")
    _refuse_condition(reader)
    times = using(reader, "TIMESTAMP", "TTL", "TIMEOUT")
    _refuse_condition(reader)
    return InsertStatement(table=table, columns=tuple(columns), values=tuple(values), using=times)


def update(reader: TokenStream) -> UpdateStatement:
    table = table_name(reader)
    times = using(reader, "TIMESTAMP", "TTL", "TIMEOUT")
    reader.expect_word("SET")
    assignments = [_assignment(reader)]
    while reader.accept_sign(","):
        assignments.append(_assignment(reader))
    _check_once(reader, assignments)
    reader.expect_word("WHERE")
    relations = where(reader)
    _refuse_condition(reader)
    return UpdateStatement(table=table, assignments=tuple(assignments), where=relations, using=times)


def _check_once(reader: TokenStream, assignments: Sequence[Assignment]) -> None:
    """A column that is assigned as a whole allows no other change in the statement."""
    changes = Counter(one.column for one in assignments)
    for one in assignments:
        if isinstance(one, AssignColumn) and changes[one.column] > 1:
            reader.fail(f"after multiple incompatible settings of column {one.column}")


def _assignment(reader: TokenStream) -> Assignment:
    column = reader.name("a column")
    if reader.accept_sign("["):
        key = term(reader)
        reader.expect_sign("]")
        reader.expect_sign("=")
        return AssignElement(column, key, term(reader))
    if reader.at_sign("."):
        raise UnsupportedFeature("fields of user-defined types")
    for sign, change in (("+", CollectionChange.APPEND), ("-", CollectionChange.REMOVE)):
        if reader.at_sign(sign) and reader.next_is_sign("="):
            reader.take()
            reader.take()
            return ChangeCollection(column, change, term(reader))
    reader.expect_sign("=")
    return _right_side(reader, column)


def _right_side(reader: TokenStream, column: str) -> Assignment:
    """`c = c + x`, `c = c - x`, `c = x + c` or `c = x`."""
    token = reader.token
    if token.kind in (TokenKind.NAME, TokenKind.QUOTED_NAME) and _names(reader, column):
        for sign, change in (("+", CollectionChange.APPEND), ("-", CollectionChange.REMOVE)):
            if reader.next_is_sign(sign):
                reader.take()
                reader.take()
                return ChangeCollection(column, change, simple_term(reader))
    first = simple_term(reader)
    if (
        reader.at_sign("+")
        and reader.peek().kind in (TokenKind.NAME, TokenKind.QUOTED_NAME)
        and reader.peek(2).text != "("
    ):
        reader.take()
        other = reader.name("a column")
        if other != column:
            reader.fail(f"after '{other}', which is not the column that is set")
        return ChangeCollection(column, CollectionChange.PREPEND, first)
    return AssignColumn(column, _rest_of_term(reader, first))


def _rest_of_term(reader: TokenStream, first: Term) -> Term:
    while reader.token.kind is TokenKind.SIGN and reader.token.text in ("+", "-", "*", "/", "%"):
        operator = reader.take().text
        first = Arithmetic(operator, first, simple_term(reader))
    return first


def _names(reader: TokenStream, column: str) -> bool:
    token = reader.token
    return (token.text if token.kind is TokenKind.QUOTED_NAME else token.text.lower()) == column


def delete(reader: TokenStream) -> DeleteStatement:
    columns: list[DeletedColumn] = []
    if not reader.at_word("FROM"):
        columns.append(_deleted(reader))
        while reader.accept_sign(","):
            columns.append(_deleted(reader))
    reader.expect_word("FROM")
    table = table_name(reader)
    times = using(reader, "TIMESTAMP", "TIMEOUT")
    reader.expect_word("WHERE")
    relations = where(reader)
    _refuse_condition(reader)
    return DeleteStatement(table=table, columns=tuple(columns), where=relations, using=times)


def _deleted(reader: TokenStream) -> DeletedColumn:
    column = reader.name("a column")
    if reader.accept_sign("["):
        key = term(reader)
        reader.expect_sign("]")
        return DeletedColumn(column, key)
    if reader.at_sign("."):
        raise UnsupportedFeature("fields of user-defined types")
    return DeletedColumn(column)


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
    times: UsingClause = using(reader, "TIMESTAMP", "TIMEOUT")
    found: list[Modification] = []
    while not reader.at_word("APPLY"):
        found.append(_modification(reader))
        while reader.accept_sign(";"):
            pass
    reader.expect_word("APPLY", "BATCH")
    return BatchStatement(kind, tuple(found), times)


def _modification(reader: TokenStream) -> Modification:
    if reader.accept_word("INSERT"):
        return insert(reader)
    if reader.accept_word("UPDATE"):
        return update(reader)
    if reader.accept_word("DELETE"):
        return delete(reader)
    raise reader.failure("expecting INSERT, UPDATE, DELETE or APPLY BATCH")


def truncate(reader: TokenStream) -> TruncateStatement:
    if not reader.accept_word("TABLE"):
        reader.accept_word("COLUMNFAMILY")
    return TruncateStatement(table_name(reader), using(reader, "TIMEOUT"))

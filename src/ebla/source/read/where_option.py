"""The option `where`: conditions in CQL on key columns and tokens, applied by nodes. Pure.

It belongs to a `load()` and holds for every use of it. Spark's own filter pushdown is not reliable, see
`reader.PushdownReader`.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ebla.cql.parse.literals import literal_value
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import ColumnRelation, Operator, Relation, SelectStatement, TokenRelation
from ebla.cql.parse.terms import Literal, Term
from ebla.model.cql_types import SCALARS, CqlType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.schema import ColumnKind, TableSchema
from ebla.model.selection import KeyCondition, KeyOperator
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.values import decode
from ebla.source.read.planner import KeyRestrictions, clip_range
from ebla.source.read.pushdown import token_ranges
from ebla.source.suggestions import missing_column

_KEYS = (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
_OPERATORS: Mapping[Operator, KeyOperator] = {
    Operator.EQUAL: KeyOperator.EQUAL,
    Operator.LESS: KeyOperator.LESS,
    Operator.AT_MOST: KeyOperator.LESS_OR_EQUAL,
    Operator.GREATER: KeyOperator.GREATER,
    Operator.AT_LEAST: KeyOperator.GREATER_OR_EQUAL,
    Operator.IN: KeyOperator.IN,
}
_BIGINT = SCALARS["bigint"]
_NOTHING_ELSE = parse("SELECT * FROM t ALLOW FILTERING").statement


def parse_where(schema: TableSchema, text: str) -> KeyRestrictions:
    """Raises `InvalidRequest` for anything but conditions on keys."""
    if not text:
        return KeyRestrictions()
    statement = parse(f"SELECT * FROM t WHERE {text} ALLOW FILTERING").statement  # noqa: S608  # it is never sent
    if not isinstance(statement, SelectStatement) or msgspec.structs.replace(statement, where=()) != _NOTHING_ELSE:
        raise _refused("only conditions joined by AND are allowed")
    conditions: list[KeyCondition] = []
    ranges: list[TokenRange] | None = None
    for relation in statement.where:
        if isinstance(relation, TokenRelation):
            known = [WHOLE_RING] if ranges is None else ranges
            ranges = [part for other in _tokens(schema, relation) for part in clip_range(other, known)]
        else:
            conditions.append(_condition(schema, relation))
    return KeyRestrictions(conditions=tuple(conditions), ranges=None if ranges is None else tuple(ranges))


def _condition(schema: TableSchema, relation: Relation) -> KeyCondition:
    if not isinstance(relation, ColumnRelation) or relation.operator not in _OPERATORS:
        raise _refused("only =, <, <=, >, >= and IN of single columns are allowed")
    column = schema.by_name.get(relation.column)
    if column is None:
        raise missing_column(schema.full_name, relation.column, schema.by_name)
    if column.kind not in _KEYS:
        raise _refused(f"{column.name} is not a key column; filter it in Spark")
    assert not is_multi_cell(column.type)
    given = relation.values if relation.value is None else (relation.value,)
    return KeyCondition(column.name, _OPERATORS[relation.operator], _values(column.type, given or (), column.name))


def _values(kind: CqlType, given: Sequence[Term], name: str) -> tuple[bytes, ...]:
    found = []
    for term in given:
        if not isinstance(term, Literal):
            raise _refused("at least one value is needed, and values are plain literals")
        found.append(literal_value(kind, term, name))
    if not found:
        raise _refused("at least one value is needed, and values are plain literals")
    return tuple(dict.fromkeys(found))


def _tokens(schema: TableSchema, relation: TokenRelation) -> Sequence[TokenRange]:
    if relation.columns != tuple(column.name for column in schema.partition_key):
        raise _refused(f"token() takes {', '.join(column.name for column in schema.partition_key)}")
    (value,) = _values(_BIGINT, (relation.value,), "token")
    operator = _OPERATORS.get(relation.operator)
    found = None if operator is None else token_ranges(operator, [decode(_BIGINT, value)])
    if found is None:
        raise _refused("tokens are compared with =, <, <=, > and >=")
    return found


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the option where is invalid: {reason}", advice="such as: k = 1 AND c >= 'a'")

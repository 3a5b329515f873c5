"""Classifies the relations of WHERE: those that select partitions, those that select rows, and filters. Pure."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from ebla.cql.parse.statements import (
    ColumnRelation,
    ElementRelation,
    MultiColumnRelation,
    Operator,
    Relation,
    TokenRelation,
)
from ebla.cql.parse.terms import FunctionCall, Term, TupleLiteral
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, contains_duration, invalid_value_test
from ebla.cql.plan.key_spans import SliceBound
from ebla.model.cql_types import SCALARS, ListType, MapType, TupleType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import composite_key, token_of
from ebla.model.values import split_elements, split_fields
from ebla.wire.cql.messages import Unset

FILTERING_ERROR = (
    "Cannot execute this query as it might involve data filtering and thus may have unpredictable performance. "
    "If you want to execute this query despite the performance unpredictability, use ALLOW FILTERING"
)
CARTESIAN_PRODUCT_MAX = 10_000
"""Limit on the partitions, or rows of each, that IN relations name in one statement."""

_SLICES = (Operator.LESS, Operator.AT_MOST, Operator.GREATER, Operator.AT_LEAST)
_LOWER = (Operator.GREATER, Operator.AT_LEAST)
_INCLUSIVE = (Operator.AT_MOST, Operator.AT_LEAST)

KeyChoices = Callable[[BoundRequest], list[tuple[bytes, ...]]]
"""The allowed values of the restricted columns, as tuples."""


class KeyRestriction(msgspec.Struct, frozen=True, kw_only=True):
    """Adjacent key columns that are fixed together: one column by `=` or IN, or several by a tuple."""

    width: int
    choices: KeyChoices
    is_single: bool
    """By `=`: always exactly one choice."""
    position: int | None = None
    """The number of the marker, if the value is a single marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRestriction:
    sources: tuple[ValueSource, ...]
    columns: tuple[Column, ...]
    is_lower: bool
    inclusive: bool

    def bound(self, request: BoundRequest) -> SliceBound:
        return SliceBound(
            tuple(require_value(source(request), column.name) for source, column in zip(self.sources, self.columns)),
            self.is_lower,
            self.inclusive,
        )


@dataclass(frozen=True, slots=True)
class TokenRestriction:
    source: ValueSource
    operator: Operator


class Restrictions(msgspec.Struct, frozen=True, kw_only=True):
    partition: tuple[KeyRestriction, ...] = ()
    """Of all partition key columns, or empty."""
    tokens: tuple[TokenRestriction, ...] = ()
    clustering: tuple[KeyRestriction, ...] = ()
    """Of the first clustering columns."""
    ends: tuple[SliceRestriction, ...] = ()
    """Of the clustering columns after those."""
    filters: tuple[Relation, ...] = ()
    """The rest, to be evaluated for every row."""

    @property
    def has_partition(self) -> bool:
        return bool(self.partition)

    @property
    def clustering_width(self) -> int:
        return sum(group.width for group in self.clustering)

    def partition_keys(self, request: BoundRequest) -> list[bytes]:
        """Serialised keys, without duplicates."""
        if len(self.partition) == 1 and self.partition[0].is_single:
            (values,) = self.partition[0].choices(request)
            return [check_partition_key(composite_key(values))]
        products = _products(self.partition, request, "partition key")
        keys = [check_partition_key(composite_key(list(itertools.chain.from_iterable(parts)))) for parts in products]
        return list(dict.fromkeys(keys))

    def clustering_values(self, request: BoundRequest) -> list[tuple[bytes, ...]]:
        if not self.clustering:
            return [()]
        products = _products(self.clustering, request, "clustering key")
        return list(dict.fromkeys(tuple(itertools.chain.from_iterable(parts)) for parts in products))

    def token_range(self, request: BoundRequest) -> tuple[int, int] | None:
        """The lowest and the highest token; None: the range is empty."""
        low, high = -(1 << 63), (1 << 63) - 1
        for end in self.tokens:
            value = end.source(request)
            if value is None or isinstance(value, Unset):
                raise InvalidRequest("Invalid null value for the token of a partition key")
            token = int.from_bytes(value, signed=True)
            # No key has the minimum token. As a bound it means the start and the end of the ring alike.
            match end.operator:
                case Operator.EQUAL:
                    low, high = max(low, token), min(high, token)
                case Operator.GREATER:
                    low = max(low, token + 1)
                case Operator.AT_LEAST:
                    low = max(low, token)
                case Operator.LESS if token != -(1 << 63):
                    high = min(high, token - 1)
                case Operator.AT_MOST if token != -(1 << 63):
                    high = min(high, token)
                case _:
                    pass
        return (low, high) if low <= high else None


def _products(
    groups: Sequence[KeyRestriction], request: BoundRequest, what: str
) -> Iterable[tuple[tuple[bytes, ...], ...]]:
    choices = [group.choices(request) for group in groups]
    count = math.prod(map(len, choices))
    if count > CARTESIAN_PRODUCT_MAX:
        raise InvalidRequest(f"{what} cartesian product size {count} is greater than maximum {CARTESIAN_PRODUCT_MAX}")
    return itertools.product(*choices)


KeyValueSource = Callable[[BoundRequest], bytes]


def key_value_source(group: KeyRestriction, column: Column) -> KeyValueSource:
    """The source of a key column restricted by `=`, with a fast path for a bound value."""
    assert group.is_single
    assert group.width == 1
    choices, number = group.choices, group.position
    if number is None:
        return lambda request: choices(request)[0][0]
    is_wrong = invalid_value_test(column.type)

    def bound(request: BoundRequest) -> bytes:
        value = request.values[number]
        if type(value) is bytes and not is_wrong(value):
            return value
        return choices(request)[0][0]  # raises the right error

    return bound


def check_partition_key(key: bytes) -> bytes:
    if not key:
        raise InvalidRequest("Key may not be empty")
    if len(key) > 65_535:
        raise InvalidRequest(f"Key length of {len(key)} is longer than maximum of 65535")
    return key


def require_value(value: bytes | Unset | None, name: str) -> bytes:
    if value is None:
        raise InvalidRequest(f"Invalid null value in condition for column {name}")
    if isinstance(value, Unset):
        raise InvalidRequest(f"Invalid unset value for column {name}")
    return value


@dataclass(slots=True)
class _RelationCompiler:
    schema: TableSchema
    binder: Binder
    filters: list[Relation] = field(default_factory=list)

    # ---- groups

    def equal(self, column: Column, term: Term) -> KeyRestriction:
        source = self.binder.source(term, TermReceiver(column.name, column.type))
        number = getattr(term, "number", None)
        return KeyRestriction(
            width=1,
            choices=lambda request: [(require_value(source(request), column.name),)],
            is_single=True,
            position=number,
        )

    def one_of(self, column: Column, relation: ColumnRelation) -> KeyRestriction:
        if relation.values is None:
            assert relation.value is not None
            whole = self.binder.source(relation.value, TermReceiver(f"in({column.name})", ListType(column.type)))
            return KeyRestriction(
                width=1, choices=lambda request: [(one,) for one in _listed(whole(request), column)], is_single=False
            )
        sources = [self.binder.source(term, TermReceiver(column.name, column.type)) for term in relation.values]
        return KeyRestriction(
            width=1,
            choices=lambda request: [(require_value(source(request), column.name),) for source in sources],
            is_single=False,
        )

    def several_equal(self, columns: Sequence[Column], term: Term) -> KeyRestriction:
        sources = self.tuple_sources(columns, term)
        return KeyRestriction(
            width=len(columns), choices=lambda request: [_tuple_of(sources(request), columns)], is_single=True
        )

    def several_one_of(self, columns: Sequence[Column], relation: MultiColumnRelation) -> KeyRestriction:
        kind = TupleType(tuple(column.type for column in columns))
        if relation.values is None:
            assert relation.value is not None
            whole = self.binder.source(relation.value, TermReceiver(_in_name(columns), ListType(kind)))
            return KeyRestriction(
                width=len(columns),
                choices=lambda request: [
                    _tuple_of(split_fields(one), columns) for one in _listed(whole(request), columns[0])
                ],
                is_single=False,
            )
        sources = [self.tuple_sources(columns, term) for term in relation.values]
        return KeyRestriction(
            width=len(columns),
            choices=lambda request: [_tuple_of(one(request), columns) for one in sources],
            is_single=False,
        )

    def tuple_sources(self, columns: Sequence[Column], term: Term) -> Callable[[BoundRequest], Sequence[bytes | None]]:
        """The parts of a tuple literal, or of a tuple bound as a whole."""
        if isinstance(term, TupleLiteral):
            if len(term.elements) != len(columns):
                raise InvalidRequest(f"Expected {len(columns)} elements in value tuple, but got {len(term.elements)}")
            sources = [
                self.binder.source(one, TermReceiver(column.name, column.type))
                for one, column in zip(term.elements, columns)
            ]
            return lambda request: [
                require_value(source(request), column.name) for source, column in zip(sources, columns)
            ]
        kind = TupleType(tuple(column.type for column in columns))
        whole = self.binder.source(term, TermReceiver(_in_name(columns), kind))
        return lambda request: _tuple_of(split_fields(require_value(whole(request), columns[0].name)), columns)

    def end_of(self, column: Column, operator: Operator, term: Term) -> SliceRestriction:
        source = self.binder.source(term, TermReceiver(column.name, column.type))
        return SliceRestriction(
            sources=(source,), columns=(column,), is_lower=operator in _LOWER, inclusive=operator in _INCLUSIVE
        )

    def ends_of(self, columns: Sequence[Column], operator: Operator, term: Term) -> SliceRestriction:
        """A slice over several columns, `(a, b) > (1, 2)`, also over one in brackets."""
        if isinstance(term, TupleLiteral):
            if len(term.elements) > len(columns):
                raise InvalidRequest(f"Expected {len(columns)} elements in value tuple, but got {len(term.elements)}")
            sources = [
                self.binder.source(one, TermReceiver(column.name, column.type))
                for one, column in zip(term.elements, columns)
            ]
        else:
            parts = self.tuple_sources(columns, term)
            sources = [_part_source(parts, number) for number in range(len(columns))]
        return SliceRestriction(
            sources=tuple(sources),
            columns=tuple(columns[: len(sources)]),
            is_lower=operator in _LOWER,
            inclusive=operator in _INCLUSIVE,
        )


def _part_source(parts: Callable[[BoundRequest], Sequence[bytes | None]], number: int) -> ValueSource:
    return lambda request: parts(request)[number]


def _in_name(columns: Sequence[Column]) -> str:
    return f"in({','.join(column.name for column in columns)})"


def _listed(value: bytes | Unset | None, column: Column) -> list[bytes]:
    if value is None or isinstance(value, Unset):
        raise InvalidRequest(f"Invalid null value for IN restriction on column {column.name}")
    try:
        parts = split_elements(value, 1)
    except ValueError as error:
        raise InvalidRequest(f"Invalid list for IN restriction on column {column.name}: {error}") from error
    return [require_value(part, column.name) for part in parts]


def _tuple_of(values: Sequence[bytes | None], columns: Sequence[Column]) -> tuple[bytes, ...]:
    if len(values) != len(columns):
        raise InvalidRequest(f"Expected {len(columns)} elements in value tuple, but got {len(values)}")
    return tuple(require_value(value, column.name) for value, column in zip(values, columns))


def classify_relations(schema: TableSchema, relations: Iterable[Relation], binder: Binder) -> Restrictions:
    """Raises `InvalidRequest` for unknown columns and contradictory relations. Relations that need filtering are in
    `filters`; the caller checks whether the statement allows that."""
    compiler = _RelationCompiler(schema, binder)
    relations_left = list(relations)
    _check_columns(schema, relations_left)
    partition, relations_left = _partition(compiler, relations_left)
    tokens, relations_left = _tokens(compiler, relations_left, bool(partition))
    if not partition:
        return Restrictions(partition=(), tokens=tokens, clustering=(), ends=(), filters=tuple(relations_left))
    clustering, ends, relations_left = _clustering(compiler, relations_left)
    return Restrictions(
        partition=partition, tokens=tokens, clustering=clustering, ends=ends, filters=tuple(relations_left)
    )


def _check_columns(schema: TableSchema, relations: Sequence[Relation]) -> None:
    for relation in relations:
        for name in columns_of(relation):
            if name not in schema.by_name:
                raise InvalidRequest(f"Undefined column name {name} in table {schema.full_name}")
        if relation.operator is Operator.NOT_EQUAL:
            raise InvalidRequest(f'Unsupported "!=" relation: {", ".join(columns_of(relation))}')
        if isinstance(relation, MultiColumnRelation):
            _check_multi_column(schema, relation)
        if isinstance(relation, ColumnRelation):
            _check_operator(schema.by_name[relation.column], relation)
    _check_once(relations)


def columns_of(relation: Relation) -> tuple[str, ...]:
    if isinstance(relation, ColumnRelation | ElementRelation):
        return (relation.column,)
    return relation.columns


def _check_multi_column(schema: TableSchema, relation: MultiColumnRelation) -> None:
    positions = []
    for name in relation.columns:
        column = schema.by_name[name]
        if column.kind is not ColumnKind.CLUSTERING:
            raise InvalidRequest(
                f"Multi-column relations can only be applied to clustering columns but was applied to: {name}"
            )
        positions.append(column.position)
    if len(set(positions)) != len(positions):
        raise InvalidRequest(f'Column "{relation.columns[0]}" appeared twice in a relation')
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise InvalidRequest(
            f"Clustering columns must appear in the PRIMARY KEY order in multi-column relations: "
            f"({', '.join(relation.columns)})"
        )


def _check_operator(column: Column, relation: ColumnRelation) -> None:
    operator = relation.operator
    if operator is Operator.EQUAL and not is_multi_cell(column.type):
        return
    if operator is Operator.LIKE:
        raise InvalidRequest(
            f"LIKE restriction is only supported on properly indexed columns, and {column.name} is not"
        )
    if operator is Operator.IS_NOT_NULL:
        raise InvalidRequest("IS NOT NULL is for materialized views, which this release does not have")
    is_collection = operator in (Operator.CONTAINS, Operator.CONTAINS_KEY)
    if is_collection and isinstance(column.type, type(SCALARS["int"])):
        raise InvalidRequest(f"Cannot use {operator} on non-collection column {column.name}")
    if operator is Operator.CONTAINS_KEY and not isinstance(column.type, MapType):
        raise InvalidRequest(f"Cannot use CONTAINS KEY on non-map column {column.name}")
    if operator in _SLICES and contains_duration(column.type):
        raise InvalidRequest(f"Slice restrictions are not supported on duration columns ({column.name})")
    if is_multi_cell(column.type) and not is_collection:
        raise InvalidRequest(
            f"Collection column '{column.name}' ({column.type}) cannot be restricted by a '{operator}' relation"
        )


def _check_once(relations: Sequence[Relation]) -> None:
    seen: dict[str, list[Operator]] = {}
    for relation in relations:
        if not isinstance(relation, ColumnRelation) or relation.operator in (Operator.CONTAINS, Operator.CONTAINS_KEY):
            continue
        before = seen.setdefault(relation.column, [])
        if before and (relation.operator not in _SLICES or any(one not in _SLICES for one in before)):
            word = "an Equal" if Operator.EQUAL in (relation.operator, *before) else "a IN"
            raise InvalidRequest(
                f"{relation.column} cannot be restricted by more than one relation if it includes {word}"
            )
        if any((one in _LOWER) == (relation.operator in _LOWER) for one in before):
            side = "start" if relation.operator in _LOWER else "end"
            raise InvalidRequest(f"More than one restriction was found for the {side} bound on {relation.column}")
        before.append(relation.operator)


# ---- partitions


def _partition(
    compiler: _RelationCompiler, relations_left: list[Relation]
) -> tuple[tuple[KeyRestriction, ...], list[Relation]]:
    groups: list[KeyRestriction] = []
    used: list[Relation] = []
    for column in compiler.schema.partition_key:
        found = _fixing_relation(relations_left, column.name)
        if found is None:
            return (), relations_left
        used.append(found)
    for column, relation in zip(compiler.schema.partition_key, used):
        assert isinstance(relation, ColumnRelation)
        groups.append(_key_restriction(compiler, column, relation))
    return tuple(groups), _remove_used(relations_left, used)


def _remove_used(relations_left: list[Relation], used: Sequence[Relation]) -> list[Relation]:
    for relation in used:
        relations_left = [one for one in relations_left if one is not relation]
    return relations_left


def _fixing_relation(relations_left: Sequence[Relation], name: str) -> ColumnRelation | None:
    for relation in relations_left:
        if not isinstance(relation, ColumnRelation) or relation.column != name:
            continue
        if relation.operator in (Operator.EQUAL, Operator.IN):
            return relation
    return None


def _key_restriction(compiler: _RelationCompiler, column: Column, relation: ColumnRelation) -> KeyRestriction:
    if relation.operator is Operator.IN:
        return compiler.one_of(column, relation)
    assert relation.value is not None
    return compiler.equal(column, relation.value)


def _tokens(
    compiler: _RelationCompiler, relations_left: list[Relation], has_partition: bool
) -> tuple[tuple[TokenRestriction, ...], list[Relation]]:
    found = [one for one in relations_left if isinstance(one, TokenRelation)]
    if not found:
        return (), relations_left
    names = tuple(column.name for column in compiler.schema.partition_key)
    for relation in found:
        if relation.columns != names:
            raise InvalidRequest(
                "The token() function must be applied to all partition key components or none of them: "
                f"{', '.join(names)}"
            )
        if relation.operator not in (*_SLICES, Operator.EQUAL):
            raise InvalidRequest(f"{relation.operator} cannot be used with the token function")
    if has_partition:
        raise InvalidRequest(
            f'Columns "{", ".join(names)}" cannot be restricted by both a normal relation and a token relation'
        )
    ends = tuple(
        TokenRestriction(token_source(compiler.binder, compiler.schema.partition_key, one.value), one.operator)
        for one in found
    )
    return ends, [one for one in relations_left if not isinstance(one, TokenRelation)]


def token_source(binder: Binder, columns: Sequence[Column], term: Term) -> ValueSource:
    """A number, or `token(…)` of values. `columns` is the partition key."""
    if not (isinstance(term, FunctionCall) and term.name.removeprefix("system.") == "token"):
        return binder.source(term, TermReceiver("partition key token", SCALARS["bigint"]))
    if len(term.arguments) != len(columns):
        raise InvalidRequest(f"Invalid number of arguments in call to function token: {len(columns)} required")
    sources = []
    for argument, column in zip(term.arguments, columns):
        if not isinstance(argument, Term):
            raise InvalidRequest("a column is not allowed here, only values are")
        sources.append(binder.source(argument, TermReceiver(column.name, column.type)))

    def token(request: BoundRequest) -> bytes:
        parts = [require_value(source(request), column.name) for source, column in zip(sources, columns)]
        return int(token_of(composite_key(parts))).to_bytes(8, signed=True)

    return token


# ---- rows in a partition


def _clustering(
    compiler: _RelationCompiler, relations_left: list[Relation]
) -> tuple[tuple[KeyRestriction, ...], tuple[SliceRestriction, ...], list[Relation]]:
    columns = compiler.schema.clustering
    groups: list[KeyRestriction] = []
    at = 0
    while at < len(columns):
        fixed = _fixed_at(compiler, relations_left, at)
        if fixed is None:
            break
        group, relation = fixed
        groups.append(group)
        relations_left = _remove_used(relations_left, [relation])
        at += group.width
    ends: list[SliceRestriction] = []
    if at < len(columns):
        for relation in list(relations_left):
            end = _end_at(compiler, relation, at)
            if end is not None:
                ends.append(end)
                relations_left = _remove_used(relations_left, [relation])
    _check_ends(ends)
    return tuple(groups), tuple(ends), relations_left


def _fixed_at(
    compiler: _RelationCompiler, relations_left: Sequence[Relation], at: int
) -> tuple[KeyRestriction, Relation] | None:
    columns = compiler.schema.clustering
    single = _fixing_relation(relations_left, columns[at].name)
    if single is not None:
        return _key_restriction(compiler, columns[at], single), single
    for relation in relations_left:
        if isinstance(relation, MultiColumnRelation) and relation.columns[0] == columns[at].name:
            together = columns[at : at + len(relation.columns)]
            if relation.operator is Operator.EQUAL:
                assert relation.value is not None
                return compiler.several_equal(together, relation.value), relation
            if relation.operator is Operator.IN:
                return compiler.several_one_of(together, relation), relation
    return None


def _end_at(compiler: _RelationCompiler, relation: Relation, at: int) -> SliceRestriction | None:
    columns = compiler.schema.clustering
    if not isinstance(relation, ColumnRelation | MultiColumnRelation) or relation.operator not in _SLICES:
        return None
    names = columns_of(relation)
    if names[0] != columns[at].name:
        return None
    assert relation.value is not None
    if isinstance(relation, ColumnRelation):
        return compiler.end_of(columns[at], relation.operator, relation.value)
    return compiler.ends_of(columns[at : at + len(names)], relation.operator, relation.value)


def _check_ends(ends: Sequence[SliceRestriction]) -> None:
    for is_lower in (True, False):
        same = [end for end in ends if end.is_lower is is_lower]
        if len(same) > 1:
            side = "start" if is_lower else "end"
            raise InvalidRequest(
                f"More than one restriction was found for the {side} bound on {same[0].columns[0].name}"
            )


def check_filtering(schema: TableSchema, found: Restrictions) -> None:
    """For a statement without ALLOW FILTERING: raises with the reason why it needs it, in Cassandra's words."""
    if not found.filters:
        return
    if found.has_partition:
        for relation in found.filters:
            for name in columns_of(relation):
                _check_clustering_filter(schema, found, schema.by_name[name])
    raise InvalidRequest(FILTERING_ERROR)


def _check_clustering_filter(schema: TableSchema, found: Restrictions, column: Column) -> None:
    if column.kind is not ColumnKind.CLUSTERING:
        return
    if column.position < found.clustering_width:
        raise InvalidRequest(f'Column "{column.name}" cannot be restricted by both a relation of its own and a tuple')
    if column.position == found.clustering_width:
        return
    before = schema.clustering[found.clustering_width]
    if found.ends:
        raise InvalidRequest(
            f'Clustering column "{column.name}" cannot be restricted (preceding column "{before.name}" is restricted '
            f"by a non-EQ relation)"
        )
    raise InvalidRequest(
        f'PRIMARY KEY column "{column.name}" cannot be restricted as preceding column "{before.name}" is not restricted'
    )

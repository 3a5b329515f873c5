"""Classifies the relations of WHERE: those that select partitions, those that select rows, and filters. Pure."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ebla.cql.parse.statements import (
    ColumnRelation,
    ElementRelation,
    MultiColumnRelation,
    Operator,
    Relation,
    TokenRelation,
)
from ebla.cql.parse.terms import BindMarker, Term, TupleLiteral
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, contains_duration, invalid_value_test
from ebla.cql.plan.key_spans import SliceBound
from ebla.model.cql_types import SCALARS, ListType, MapType, ScalarType, TupleType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import composite_key
from ebla.model.values import holds_empty, split_elements, split_fields
from ebla.wire.cql.messages import Unset

FILTERING_ERROR = (
    "Cannot execute this query as it might involve data filtering and thus may have unpredictable performance. "
    "If you want to execute this query despite the performance unpredictability, use ALLOW FILTERING"
)
KEY_BYTES_MAX = 65_535
CARTESIAN_PRODUCT_MAX = 10_000
"""Limit on the partitions, or rows of each, that IN relations name in one statement."""

_SLICES = (Operator.LESS, Operator.AT_MOST, Operator.GREATER, Operator.AT_LEAST)
_LOWER = (Operator.GREATER, Operator.AT_LEAST)
CONTAINS_OPERATORS = (Operator.CONTAINS, Operator.CONTAINS_KEY)
_INCLUSIVE = (Operator.AT_MOST, Operator.AT_LEAST)

ComparedRelation = ColumnRelation | MultiColumnRelation
ComparedValues = Callable[[BoundRequest], list[tuple[bytes, ...]]]
"""What a relation compares its columns with, as tuples of their values: one tuple, or any number for IN."""


class KeyRestriction(msgspec.Struct, frozen=True, kw_only=True):
    """Adjacent key columns that are fixed together: one column by `=` or IN, or several by a tuple."""

    width: int
    choices: ComparedValues
    is_single: bool
    """By `=`, or IN with one written value: always exactly one choice."""
    position: int | None = None
    """The number of the marker, if the value is a single marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRestriction:
    column: Column
    """The first one of the slice."""
    values: ComparedValues
    is_lower: bool
    inclusive: bool

    def bound(self, request: BoundRequest) -> SliceBound:
        (values,) = self.values(request)
        return SliceBound(values, self.is_lower, self.inclusive)


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
    keys_max: int
    """Partitions, or rows of each, that IN relations may name together."""

    @property
    def has_partition(self) -> bool:
        return bool(self.partition)

    @property
    def clustering_width(self) -> int:
        return sum(group.width for group in self.clustering)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """The markers of the partition key columns, from which drivers compute the token; empty if one is no marker."""
        found = tuple(group.position for group in self.partition if group.position is not None)
        return found if len(found) == len(self.partition) else ()

    def partition_keys(self, request: BoundRequest) -> list[bytes]:
        """Serialised keys, without duplicates."""
        if len(self.partition) == 1 and self.partition[0].is_single:
            (values,) = self.partition[0].choices(request)
            return [check_partition_key(composite_key(values))]
        products = self._products(self.partition, request, "partition key")
        keys = [check_partition_key(composite_key(list(itertools.chain.from_iterable(parts)))) for parts in products]
        return list(dict.fromkeys(keys))

    def clustering_values(self, request: BoundRequest) -> list[tuple[bytes, ...]]:
        if not self.clustering:
            return [()]
        products = self._products(self.clustering, request, "clustering key")
        return list(dict.fromkeys(tuple(itertools.chain.from_iterable(parts)) for parts in products))

    def _products(
        self, groups: Sequence[KeyRestriction], request: BoundRequest, what: str
    ) -> Iterable[tuple[tuple[bytes, ...], ...]]:
        choices = [group.choices(request) for group in groups]
        count = math.prod(map(len, choices))
        if count > self.keys_max:
            raise InvalidRequest(f"{what} cartesian product size {count} is greater than maximum {self.keys_max}")
        return itertools.product(*choices)

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


KeyValueSource = Callable[[BoundRequest], bytes]


@dataclass(frozen=True, slots=True)
class RowKeySources:
    """Of each column of the primary key."""

    partition: tuple[KeyValueSource, ...]
    clustering: tuple[KeyValueSource, ...]


def row_key_sources(schema: TableSchema, restrictions: Restrictions) -> RowKeySources | None:
    """None if the restrictions do not fix every key column by `=`."""
    groups = (*restrictions.partition, *restrictions.clustering)
    columns = (*schema.partition_key, *schema.clustering)
    if len(groups) != len(columns) or not all(group.is_single and group.width == 1 for group in groups):
        return None
    sources = tuple(map(_key_value_source, groups, columns))
    width = len(schema.partition_key)
    return RowKeySources(sources[:width], sources[width:])


def _key_value_source(group: KeyRestriction, column: Column) -> KeyValueSource:
    """With a fast path for a bound value."""
    choices, number = group.choices, group.position
    if number is None or not isinstance(column.type, ScalarType):
        return lambda request: choices(request)[0][0]
    is_wrong = invalid_value_test(column.type)

    def bound(request: BoundRequest) -> bytes:
        value = request.values[number]
        if value and type(value) is bytes and not is_wrong(value):
            return value
        return choices(request)[0][0]  # raises the right error

    return bound


def check_partition_key(key: bytes) -> bytes:
    if not key:
        raise InvalidRequest("Key may not be empty")
    _check_key_length(len(key))
    return key


def check_clustering_key(values: Sequence[bytes]) -> Sequence[bytes]:
    """Of a write. A read may name a longer key: no row has it."""
    _check_key_length(sum(map(len, values)))
    return values


def _check_key_length(length: int) -> None:
    if length > KEY_BYTES_MAX:
        raise InvalidRequest(f"Key length of {length} is longer than maximum of {KEY_BYTES_MAX}")


def require_value(value: bytes | Unset | None, name: str) -> bytes:
    if value is None:
        raise InvalidRequest(f"Invalid null value in condition for column {name}")
    if isinstance(value, Unset):
        raise InvalidRequest(f"Invalid unset value for column {name}")
    return value


# ---- values


def compared_values(binder: Binder, columns: Sequence[Column], relation: ComparedRelation) -> ComparedValues:
    if relation.operator is Operator.IN and relation.value is not None:
        return _bound_list(binder, columns, relation)
    terms = relation.values if relation.value is None else (relation.value,)
    assert terms is not None
    binder.check_elements(len(terms))
    if isinstance(relation, ColumnRelation):
        (column,) = columns
        sources = [binder.source(term, TermReceiver(column.name, column.type)) for term in terms]
        return lambda request: [(require_value(source(request), column.name),) for source in sources]
    tuples = [_tuple_source(binder, columns, term, is_slice=relation.operator in _SLICES) for term in terms]
    return lambda request: [one(request) for one in tuples]


def _key_values(binder: Binder, columns: Sequence[Column], relation: ComparedRelation) -> ComparedValues:
    """As `compared_values`, without empty values of numbers, times and the like: stored keys have no form for them."""
    compared = compared_values(binder, columns, relation)

    def checked(request: BoundRequest) -> list[tuple[bytes, ...]]:
        found = compared(request)
        for values in found:
            for column, value in zip(columns, values):
                if holds_empty(column.type, value):
                    raise InvalidRequest(
                        f"Key may not be empty: column {column.name} of type {column.type} is part of the key, and "
                        "keys hold no empty values of this type"
                    )
        return found

    return checked


def _bound_list(binder: Binder, columns: Sequence[Column], relation: ComparedRelation) -> ComparedValues:
    """One marker for everything after IN."""
    assert relation.value is not None
    is_tuple = isinstance(relation, MultiColumnRelation)
    element = _tuple_type(columns) if is_tuple else columns[0].type
    whole = binder.source(relation.value, TermReceiver(_in_name(columns), ListType(element)))

    def bound(request: BoundRequest) -> list[tuple[bytes, ...]]:
        elements = _listed(whole(request), columns[0])
        return [_tuple_of(split_fields(one), columns) if is_tuple else (one,) for one in elements]

    return bound


def _tuple_source(
    binder: Binder, columns: Sequence[Column], term: Term, *, is_slice: bool
) -> Callable[[BoundRequest], tuple[bytes, ...]]:
    """A tuple literal, or a tuple bound as a whole. In a slice, a literal may have fewer values than columns."""
    if not isinstance(term, TupleLiteral):
        whole = binder.source(term, TermReceiver(_in_name(columns), _tuple_type(columns)))
        return lambda request: _tuple_of(split_fields(require_value(whole(request), columns[0].name)), columns)
    if len(term.elements) > len(columns) or (len(term.elements) < len(columns) and not is_slice):
        raise InvalidRequest(f"Expected {len(columns)} elements in value tuple, but got {len(term.elements)}")
    sources = [
        (binder.source(one, TermReceiver(column.name, column.type)), column.name)
        for one, column in zip(term.elements, columns)
    ]
    return lambda request: tuple(require_value(source(request), name) for source, name in sources)


def _tuple_type(columns: Sequence[Column]) -> TupleType:
    return TupleType(tuple(column.type for column in columns))


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


# ---- classifying


def classify_relations(schema: TableSchema, relations: Iterable[Relation], binder: Binder) -> Restrictions:
    """Raises `InvalidRequest` for unknown columns and contradictory relations. Relations that need filtering are in
    `filters`; the caller checks whether the statement allows that."""
    classifier = _RelationClassifier(schema, binder, list(relations))
    _check_columns(schema, classifier.left)
    partition = classifier.take_partition()
    tokens = classifier.take_tokens(has_partition=bool(partition))
    clustering = classifier.take_clustering() if partition else ()
    ends = classifier.take_ends(clustering) if partition else ()
    return Restrictions(
        partition=partition,
        tokens=tokens,
        clustering=clustering,
        ends=ends,
        filters=tuple(classifier.left),
        keys_max=min(CARTESIAN_PRODUCT_MAX, binder.elements_max),
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
        if isinstance(relation, ElementRelation):
            _check_element(schema.by_name[relation.column])
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
    is_collection = operator in CONTAINS_OPERATORS
    if is_collection and isinstance(column.type, ScalarType):
        raise InvalidRequest(f"Cannot use {operator} on non-collection column {column.name}")
    if operator is Operator.CONTAINS_KEY and not isinstance(column.type, MapType):
        raise InvalidRequest(f"Cannot use CONTAINS KEY on non-map column {column.name}")
    if operator in _SLICES and contains_duration(column.type):
        raise InvalidRequest(f"Slice restrictions are not supported on duration columns ({column.name})")
    if is_multi_cell(column.type) and not is_collection:
        raise InvalidRequest(
            f"Collection column '{column.name}' ({column.type}) cannot be restricted by a '{operator}' relation"
        )


def _check_element(column: Column) -> None:
    if not isinstance(column.type, MapType):
        raise InvalidRequest(f"Column {column.name} is no map: its elements cannot be compared")
    if column.type.frozen:
        raise InvalidRequest(f"Map-entry equality predicates on frozen map column {column.name} are not supported")


def _check_once(relations: Sequence[Relation]) -> None:
    seen: dict[str, list[Operator]] = {}
    for relation in relations:
        if not isinstance(relation, ColumnRelation) or relation.operator in CONTAINS_OPERATORS:
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


@dataclass(slots=True)
class _RelationClassifier:
    schema: TableSchema
    binder: Binder
    left: list[Relation]
    """The relations that are not used yet."""

    def take_partition(self) -> tuple[KeyRestriction, ...]:
        found = [self._fixing_relation(column.name) for column in self.schema.partition_key]
        used = [relation for relation in found if relation is not None]
        if len(used) < len(found):
            return ()
        return tuple(self._use((column,), relation) for column, relation in zip(self.schema.partition_key, used))

    def _fixing_relation(self, name: str) -> ColumnRelation | None:
        for relation in self.left:
            if not isinstance(relation, ColumnRelation) or relation.column != name:
                continue
            if relation.operator in (Operator.EQUAL, Operator.IN):
                return relation
        return None

    def _use(self, columns: Sequence[Column], relation: ComparedRelation) -> KeyRestriction:
        self.left = [one for one in self.left if one is not relation]
        is_equal = relation.operator is Operator.EQUAL
        marker = relation.value if is_equal and isinstance(relation, ColumnRelation) else None
        return KeyRestriction(
            width=len(columns),
            choices=_key_values(self.binder, columns, relation),
            is_single=is_equal or len(relation.values or ()) == 1,
            position=marker.number if isinstance(marker, BindMarker) else None,
        )

    def take_tokens(self, *, has_partition: bool) -> tuple[TokenRestriction, ...]:
        found = [one for one in self.left if isinstance(one, TokenRelation)]
        names = tuple(column.name for column in self.schema.partition_key)
        for relation in found:
            _check_token_arguments(relation.columns, names)
            if relation.operator not in (*_SLICES, Operator.EQUAL):
                raise InvalidRequest(f"{relation.operator} cannot be used with the token function")
        if found and has_partition:
            raise InvalidRequest(
                f'Columns "{", ".join(names)}" cannot be restricted by both a normal relation and a token relation'
            )
        self.left = [one for one in self.left if not isinstance(one, TokenRelation)]
        return tuple(TokenRestriction(token_source(self.binder, one.value), one.operator) for one in found)

    # ---- rows in a partition

    def take_clustering(self) -> tuple[KeyRestriction, ...]:
        groups: list[KeyRestriction] = []
        at = 0
        while at < len(self.schema.clustering):
            relation = self._fixing_from(at)
            if relation is None:
                break
            groups.append(self._use(self.schema.clustering[at : at + len(columns_of(relation))], relation))
            at += groups[-1].width
        return tuple(groups)

    def _fixing_from(self, at: int) -> ComparedRelation | None:
        name = self.schema.clustering[at].name
        single = self._fixing_relation(name)
        if single is not None:
            return single
        for relation in self.left:
            if not isinstance(relation, MultiColumnRelation) or relation.columns[0] != name:
                continue
            if relation.operator in (Operator.EQUAL, Operator.IN):
                return relation
        return None

    def take_ends(self, clustering: Sequence[KeyRestriction]) -> tuple[SliceRestriction, ...]:
        """Of the clustering column after those that are fixed."""
        columns = self.schema.clustering[sum(group.width for group in clustering) :]
        ends: list[SliceRestriction] = []
        for relation in list(self.left):
            if not isinstance(relation, ColumnRelation | MultiColumnRelation) or relation.operator not in _SLICES:
                continue
            names = columns_of(relation)
            if not columns or names[0] != columns[0].name:
                continue
            self.left = [one for one in self.left if one is not relation]
            ends.append(
                SliceRestriction(
                    column=columns[0],
                    values=_key_values(self.binder, columns[: len(names)], relation),
                    is_lower=relation.operator in _LOWER,
                    inclusive=relation.operator in _INCLUSIVE,
                )
            )
        _check_ends(ends)
        return tuple(ends)


def _check_token_arguments(columns: Sequence[str], partition_key: Sequence[str]) -> None:
    for name in columns:
        if name not in partition_key:
            raise InvalidRequest(f"The token() function must contain only partition key components, and {name} is none")
    for name in partition_key:
        if name not in columns:
            raise InvalidRequest(
                f"The token() function must be applied to all partition key components or none of them: {name} is "
                "missing"
            )
    if tuple(columns) != tuple(partition_key):
        wrong = next(one for one, other in itertools.zip_longest(columns, partition_key) if one != other)
        raise InvalidRequest(
            f"The token() function arguments must be in the partition key order ({', '.join(partition_key)}): {wrong} "
            "is out of order"
        )


def token_source(binder: Binder, term: Term) -> ValueSource:
    """A number, or `token(…)` of values."""
    return binder.source(term, TermReceiver("partition key token", SCALARS["bigint"]))


def _check_ends(ends: Sequence[SliceRestriction]) -> None:
    for is_lower in (True, False):
        same = [end for end in ends if end.is_lower is is_lower]
        if len(same) > 1:
            side = "start" if is_lower else "end"
            raise InvalidRequest(f"More than one restriction was found for the {side} bound on {same[0].column.name}")


def check_filtering(schema: TableSchema, found: Restrictions) -> None:
    """For a statement without ALLOW FILTERING: raises with the reason why it needs it, in Cassandra's words."""
    if not found.filters:
        return
    contains = [one for one in found.filters if one.operator in CONTAINS_OPERATORS]
    if any(schema.by_name[name].kind is ColumnKind.CLUSTERING for one in contains for name in columns_of(one)):
        raise InvalidRequest(
            "Clustering columns can only be restricted with CONTAINS with a secondary index or filtering"
        )
    if found.has_partition:
        for relation in found.filters:
            for name in columns_of(relation):
                _check_clustering_filter(schema, found, schema.by_name[name])
    else:
        _check_sliced_clustering(schema, found.filters)
    because = f" (because of {contains[0].operator} on {columns_of(contains[0])[0]})" if contains else ""
    raise InvalidRequest(FILTERING_ERROR + because)


def _check_sliced_clustering(schema: TableSchema, relations: Sequence[Relation]) -> None:
    """Of a statement without a partition key: no clustering column after one with a slice."""
    columns = [(schema.by_name[columns_of(one)[0]], one.operator in _SLICES) for one in relations]
    clustering = [(column, sliced) for column, sliced in columns if column.kind is ColumnKind.CLUSTERING]
    for before, sliced in clustering:
        for column, _ in clustering:
            if sliced and before.position < column.position:
                raise _after_slice(column, before)


def _after_slice(column: Column, before: Column) -> InvalidRequest:
    return InvalidRequest(
        f'Clustering column "{column.name}" cannot be restricted (preceding column "{before.name}" is restricted by a '
        "non-EQ relation)"
    )


def _check_clustering_filter(schema: TableSchema, found: Restrictions, column: Column) -> None:
    if column.kind is not ColumnKind.CLUSTERING:
        return
    if column.position < found.clustering_width:
        raise InvalidRequest(f'Column "{column.name}" cannot be restricted by both a relation of its own and a tuple')
    if column.position == found.clustering_width:
        return
    before = schema.clustering[found.clustering_width]
    if found.ends:
        raise _after_slice(column, before)
    raise InvalidRequest(
        f'PRIMARY KEY column "{column.name}" cannot be restricted as preceding column "{before.name}" is not restricted'
    )

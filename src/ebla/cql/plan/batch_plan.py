"""BEGIN BATCH … APPLY BATCH compiled as one statement, whose markers are numbered through."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from ebla.cql.parse.statements import BatchStatement, Modification, TableName
from ebla.cql.parse.terms import BindMarker
from ebla.cql.plan.binder import Binder, TermReceiver, ValueSource
from ebla.cql.plan.modification_plan import ModificationPlan, plan_modification
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import ColumnSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    kind: BatchKind
    parts: tuple[ModificationPlan, ...]
    variables: tuple[ColumnSpec, ...]
    timeout: ValueSource | None


def plan_batch(
    statement: BatchStatement, schema_of: Callable[[TableName], TableSchema], markers: tuple[BindMarker, ...]
) -> BatchPlan:
    """Raises `InvalidRequest` with what is wrong."""
    using = statement.using
    parts: list[ModificationPlan] = []
    variables: list[ColumnSpec] = []
    outer = Binder(keyspace="", table="", markers=markers)
    if using.timestamp is not None:
        outer.source(using.timestamp, TermReceiver("[timestamp]", SCALARS["bigint"]))
    timeout = (
        None if using.timeout is None else outer.source(using.timeout, TermReceiver("[timeout]", SCALARS["duration"]))
    )
    own = outer.variables(all_known=False)
    for one in statement.statements:
        schema = schema_of(one.table)
        plan = plan_modification(_timed(one, statement), schema, markers, part_of_batch=True)
        parts.append(plan)
        # The batch's own timestamp stands in every part and counts once: it is the first of the text.
        shared = 1 if isinstance(using.timestamp, BindMarker) else 0
        variables += plan.variables[shared:]
    if own and parts:
        own = tuple(
            msgspec.structs.replace(spec, keyspace=parts[0].schema.keyspace, table=parts[0].schema.name) for spec in own
        )
    found = (*own, *variables)
    if len(found) != len(markers):
        raise InvalidRequest("some bind markers have no place where their type would be known")
    return BatchPlan(kind=statement.kind, parts=tuple(parts), variables=found, timeout=timeout)


def _timed(one: Modification, batch: BatchStatement) -> Modification:
    if batch.using.timestamp is None:
        return one
    if one.using.timestamp is not None:
        raise InvalidRequest("Timestamp must be set either on BATCH or individual statements")
    return replace(one, using=replace(one.using, timestamp=batch.using.timestamp))

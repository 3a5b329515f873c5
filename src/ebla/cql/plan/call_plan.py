"""CALL compiled: a name, and one blob that goes to it as it is. What it does and answers is not CQL's business."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ebla.cql.parse.statements import CallStatement
from ebla.cql.parse.terms import BindMarker
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest
from ebla.wire.cql.messages import ColumnSpec, Rows

KEYSPACE = "ebla"
"""In which calls stand. There need be no such keyspace."""
BLOB = SCALARS["blob"]


class CallService(Protocol):
    """Who carries calls out."""

    @property
    def names(self) -> Collection[str]: ...

    async def call(self, name: str, payload: bytes) -> bytes:
        """A failure of what is asked for stands in the answer, with its outcome. Raises nothing that is foreseen."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    name: str
    argument: ValueSource
    variables: tuple[ColumnSpec, ...]
    columns: tuple[ColumnSpec, ...]

    def payload_of(self, bound: BoundRequest) -> bytes:
        value = self.argument(bound)
        if not isinstance(value, bytes):
            raise InvalidRequest(f"{KEYSPACE}.{self.name} is given a blob, not null")
        return value


def plan_call(statement: CallStatement, names: Collection[str], markers: tuple[BindMarker, ...]) -> CallPlan:
    """Raises `InvalidRequest` where there is no such call."""
    name = statement.name
    if statement.keyspace != KEYSPACE or name not in names:
        known = ", ".join(f"{KEYSPACE}.{one}" for one in sorted(names)) or "none on this node"
        raise InvalidRequest(f"there is nothing to call as {statement.keyspace}.{name}", advice=f"there is: {known}")
    binder = Binder(keyspace=KEYSPACE, table=name, markers=markers)
    argument = binder.source(statement.argument, TermReceiver("request", BLOB))
    return CallPlan(
        name=name,
        argument=argument,
        variables=binder.variables(),
        columns=(ColumnSpec(keyspace=KEYSPACE, table=name, name="answer", type=BLOB),),
    )


def call_result_rows(plan: CallPlan, answer: bytes) -> Rows:
    return Rows(plan.columns, ((answer,),))

"""CALL: passes one blob to a service of the node, and returns its blob. CQL does not know what they contain."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ebla.cql.parse.statements import CallStatement
from ebla.cql.parse.terms import BindMarker
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest
from ebla.wire.cql.messages import ColumnSpec

KEYSPACE = "ebla"
"""The keyspace of all calls. It need not exist."""
BLOB = SCALARS["blob"]


class CallService(Protocol):
    """Executes calls."""

    @property
    def names(self) -> Collection[str]: ...

    async def call(self, name: str, payload: bytes) -> bytes:
        """A failed call returns its error and outcome in the answer. Raises no expected error."""
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
            raise InvalidRequest(f"{KEYSPACE}.{self.name} takes a blob, not null")
        return value


def plan_call(statement: CallStatement, names: Collection[str], markers: tuple[BindMarker, ...]) -> CallPlan:
    """Raises `InvalidRequest` if there is no such call."""
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

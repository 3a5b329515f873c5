"""The promises of schema changes, checked from outside every process.

INV-SCHEMA-1  the changes of a table have an order that explains every answer: of two that create it, one wins
INV-SCHEMA-2  when a change is answered, every node that stayed up has it, or the answer lists it as unreached
INV-SCHEMA-3  a node never shows half of a change: every state it shows is valid for the topology
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ebla.model.schema import decode_schema
from ebla.sim.checkers.history import ClientOperation, OperationHistory
from ebla.sim.checkers.linearizability import find_violation
from ebla.topology.invariants import violations
from ebla.topology.snapshot import Snapshot

UNKNOWN_ID = "unsure"
"""The id of a table whose creation was never answered."""


class CreateTableCall(msgspec.Struct, frozen=True):
    """Result: the id if it was created; None if it existed already."""


class AlterTableCall(msgspec.Struct, frozen=True):
    """Result: the id; None if there was no such table."""

    column: str


class DropTableCall(msgspec.Struct, frozen=True):
    """Result: the id; None if there was no such table."""


TableModelState = tuple[str, str]
"""The id of the existing table and of the one dropped last. Empty: none."""


class TableModel:
    """One table name. A drop that does not know its outcome may find that the table is gone. So two callers may have
    dropped the same table, if both called while it existed."""

    def initial(self) -> TableModelState:
        return "", ""

    def step(self, state: TableModelState, operation: ClientOperation) -> tuple[bool, TableModelState]:
        match operation.call:
            case CreateTableCall():
                return self._create(state, operation)
            case DropTableCall():
                return self._drop(state, operation)
            case _:
                return self._alter(state, operation)

    def changes(self, operation: ClientOperation) -> bool:
        return not isinstance(operation.call, AlterTableCall)

    def _create(self, state: TableModelState, operation: ClientOperation) -> tuple[bool, TableModelState]:
        here, gone = state
        if operation.returned is None:
            return True, (here or UNKNOWN_ID, gone)
        if operation.result is None:
            return here != "", state
        return here == "", (operation.result, gone)

    def _drop(self, state: TableModelState, operation: ClientOperation) -> tuple[bool, TableModelState]:
        here, gone = state
        if operation.returned is None:
            return True, ("", here or gone)
        if operation.result is None:
            return here == "", state
        if here == "":
            return gone in (operation.result, UNKNOWN_ID), state
        return here in (operation.result, UNKNOWN_ID), ("", operation.result)

    def _alter(self, state: TableModelState, operation: ClientOperation) -> tuple[bool, TableModelState]:
        here, _ = state
        if operation.returned is None:
            return True, state
        return here == "" if operation.result is None else here in (operation.result, UNKNOWN_ID), state


@dataclass(slots=True)
class SchemaRecord:
    history: OperationHistory = field(default_factory=OperationHistory)
    columns: dict[str, list[str]] = field(default_factory=dict)
    """The columns added to each table, by its id."""
    answered: int = 0

    def problem(self, snapshots: Mapping[str, Snapshot]) -> str | None:
        violation = find_violation(self.history.operations(), TableModel())
        if violation is not None:
            return f"INV-SCHEMA-1: {violation}"
        shown = list(snapshots.values())
        if any(snapshot != shown[0] for snapshot in shown):
            return f"the nodes do not agree: {[snapshot.version for snapshot in shown]}"
        return find_partial_change(shown[0]) or self._lost_columns(shown[0])

    def _lost_columns(self, snapshot: Snapshot) -> str | None:
        for table in snapshot.tables.values():
            names = decode_schema(table.definition).by_name
            lost = [name for name in self.columns.get(str(table.id), ()) if name not in names]
            if lost:
                return f"columns {lost} of {table.full_name} were added according to their callers, but are missing"
        return None


def find_partial_change(snapshot: Snapshot) -> str | None:
    """INV-SCHEMA-3 for one snapshot."""
    broken = violations(snapshot)
    if broken:
        return f"INV-SCHEMA-3: {broken[0]}"
    names = [table.full_name for table in snapshot.tables.values()]
    if len(set(names)) != len(names):
        return f"INV-SCHEMA-3: two tables of one name: {sorted(names)}"
    for table in snapshot.tables.values():
        if table.keyspace not in snapshot.keyspaces:
            return f"INV-SCHEMA-3: table {table.full_name} has no keyspace"
        if snapshot.on_tablets(table.id) != (table.id in snapshot.tablets):
            return f"INV-SCHEMA-3: table {table.full_name} and its tablets do not fit together"
        if decode_schema(table.definition).id != table.id:
            return f"INV-SCHEMA-3: table {table.full_name} has the definition of another"
    lost = [table for table in snapshot.tablets if table not in snapshot.tables]
    return f"INV-SCHEMA-3: tablets of table {lost[0]}, which is gone" if lost else None

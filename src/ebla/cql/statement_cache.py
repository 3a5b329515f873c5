"""Statements are parsed and planned once, and kept until their table changes."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from ebla.cql.catalog import Catalog, StoredTable, VirtualTables
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import (
    BatchStatement,
    CallStatement,
    DeleteStatement,
    InsertStatement,
    ParsedStatement,
    SelectStatement,
    UnsupportedStatement,
    UpdateStatement,
)
from ebla.cql.plan.call_plan import CallPlan, plan_call
from ebla.cql.plan.modification_plan import BatchPlan, ModificationPlan, plan_batch, plan_modification
from ebla.cql.plan.point_select import PointSelectPlan, point_select
from ebla.cql.plan.select_plan import SelectPlan, plan_select
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import InvalidRequest, Unprepared
from ebla.model.schema import TableSchema

K = TypeVar("K")
V = TypeVar("V")

Plan = SelectPlan | ModificationPlan | BatchPlan | CallPlan | None
"""None: a statement that is carried out as parsed (USE, DESCRIBE, TRUNCATE, schema changes)."""


class LruCache(Generic[K, V]):
    """A bounded cache that evicts the least recently used entry."""

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int) -> None:
        assert entries_max > 0
        self._entries: dict[K, V] = {}
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is not None and len(self._entries) * 2 > self._entries_max:
            # The order matters only once the cache fills up.
            del self._entries[key]
            self._entries[key] = found
        return found

    def put(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._entries_max:
            del self._entries[next(iter(self._entries))]


@dataclass(slots=True, kw_only=True)
class CompiledStatement:
    """A statement with its plan. It is valid as long as its table has the same schema."""

    parsed: ParsedStatement
    plan: Plan
    schema: TableSchema | None
    """The schema of the stored table that the plan is for."""
    text: str
    keyspace: str | None
    """The keyspace of the connection when the statement was compiled."""
    point: PointSelectPlan | None = None
    """The fast path for a single row, if the plan has one."""
    valid_in: View | None = None
    """The view in which the statement was last checked to be valid."""


class StatementCache:
    def __init__(
        self, view: TopologyView, virtual: VirtualTables, call_names: Collection[str], statements_max: int
    ) -> None:
        self._view = view
        self._virtual = virtual
        self._call_names = call_names
        self._queries: LruCache[tuple[str | None, str], CompiledStatement] = LruCache(statements_max)
        self._prepared: LruCache[bytes, CompiledStatement] = LruCache(statements_max)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._view.current, self._virtual)

    def query(self, text: str, keyspace: str | None) -> CompiledStatement:
        """The statement of a QUERY message."""
        key = (keyspace, text)
        compiled = self._queries.get(key)
        if compiled is None or not self._is_valid(compiled):
            compiled = self.compile(text, keyspace)
            # The argument of a CALL is in its text. It may be large, and the same one hardly comes twice.
            if compiled.plan is not None and not isinstance(compiled.plan, CallPlan):
                self._queries.put(key, compiled)
        return compiled

    def prepare(self, text: str, keyspace: str | None) -> tuple[bytes, CompiledStatement]:
        """The id depends on keyspace and text alone, so it is the same on every node."""
        compiled = self.compile(text, keyspace)
        if compiled.plan is None and compiled.parsed.markers:
            raise InvalidRequest("bind markers are not allowed in this statement")
        statement_id = hashlib.md5(f"{keyspace or ''}{text}".encode(), usedforsecurity=False).digest()
        self._prepared.put(statement_id, compiled)
        return statement_id, compiled

    def prepared(self, statement_id: bytes) -> CompiledStatement:
        compiled = self._prepared.get(statement_id)
        if compiled is None:
            raise Unprepared(
                f"Prepared query with ID {statement_id.hex()} not found (either the query was not prepared on this "
                "host, or it has been evicted)",
                statement_id=statement_id,
            )
        if not self._is_valid(compiled):
            compiled = self.compile(compiled.text, compiled.keyspace)
            self._prepared.put(statement_id, compiled)
        return compiled

    def compile(self, text: str, keyspace: str | None) -> CompiledStatement:
        parsed = parse(text)
        statement = parsed.statement
        plan: Plan = None
        schema: TableSchema | None = None
        point: PointSelectPlan | None = None
        match statement:
            case UnsupportedStatement(what=what):
                raise InvalidRequest(f"{what}: not supported in this release")
            case SelectStatement(table=name):
                table = self.catalog.table(name, keyspace)
                plan = plan_select(statement, table, parsed.markers)
                if isinstance(table, StoredTable):
                    schema, point = table.schema, point_select(plan, table.id)
            case InsertStatement() | UpdateStatement() | DeleteStatement():
                schema = self.catalog.stored(statement.table, keyspace).schema
                plan = plan_modification(statement, schema, parsed.markers)
            case BatchStatement():
                catalog = self.catalog
                plan = plan_batch(statement, lambda name: catalog.stored(name, keyspace).schema, parsed.markers)
            case CallStatement():
                plan = plan_call(statement, self._call_names, parsed.markers)
            case _:
                pass
        return CompiledStatement(parsed=parsed, plan=plan, schema=schema, text=text, keyspace=keyspace, point=point)

    def _is_valid(self, compiled: CompiledStatement) -> bool:
        view = self._view.current
        if compiled.valid_in is view:
            return True
        is_valid = _has_current_schema(compiled, view)
        compiled.valid_in = view if is_valid else None
        return is_valid


def _has_current_schema(compiled: CompiledStatement, view: View) -> bool:
    if isinstance(compiled.plan, BatchPlan):
        return all(view.schemas.get(part.schema.id) is part.schema for part in compiled.plan.parts)
    return compiled.schema is None or view.schemas.get(compiled.schema.id) is compiled.schema

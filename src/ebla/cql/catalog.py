"""Resolves the names in a statement to stored tables and to virtual tables."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ebla.cql.parse.statements import TableName
from ebla.feed.topology_view import View
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import TableSchema
from ebla.topology.snapshot import Keyspace


@dataclass(frozen=True, slots=True)
class VirtualTable:
    """A table whose rows are made on read: computed from the state of this node, or fetched from another process."""

    schema: TableSchema
    work: Callable[[], Iterable[Mapping[str, Any]] | Awaitable[Iterable[Mapping[str, Any]]]]

    async def rows(self) -> Iterable[Mapping[str, Any]]:
        """Values by column name, as `model.values.encode` accepts them; missing columns are null."""
        found = self.work()
        return await found if isinstance(found, Awaitable) else found


VirtualTables = Mapping[tuple[str, str], VirtualTable]


class Catalog(msgspec.Struct, frozen=True):
    """The tables at one version of the topology."""

    view: View
    virtual: VirtualTables

    def has_keyspace(self, name: str) -> bool:
        return name in self.view.snapshot.keyspaces or any(keyspace == name for keyspace, _ in self.virtual)

    def keyspace(self, name: str) -> Keyspace:
        """A keyspace that users can alter."""
        found = self.view.snapshot.keyspaces.get(name)
        if found is None and self.has_keyspace(name):
            raise InvalidRequest(f"{name} keyspace is not user-modifiable.")
        if found is None:
            raise NotFound(f"Keyspace '{name}' does not exist")
        return found

    def has_table(self, name: TableName, session_keyspace: str | None) -> bool:
        keyspace = keyspace_of(name, session_keyspace)
        return (keyspace, name.name) in self.virtual or (keyspace, name.name) in self.view.names

    def table(self, name: TableName, session_keyspace: str | None) -> TableSchema | VirtualTable:
        """The schema of a stored table, or a virtual table."""
        keyspace = keyspace_of(name, session_keyspace)
        virtual = self.virtual.get((keyspace, name.name))
        if virtual is not None:
            return virtual
        found = self.view.names.get((keyspace, name.name))
        schema = None if found is None else self.view.schemas.get(found)
        if schema is not None:
            return schema
        if not self.has_keyspace(keyspace):
            raise NotFound(f"Keyspace '{keyspace}' does not exist")
        raise NotFound(f"unconfigured table {name.name}")

    def stored(self, name: TableName, session_keyspace: str | None) -> TableSchema:
        """The table of a write."""
        found = self.table(name, session_keyspace)
        if not isinstance(found, TableSchema):
            raise InvalidRequest(f"{found.schema.full_name} shows the state of the node and cannot be written")
        return found


def keyspace_of(name: TableName, session_keyspace: str | None) -> str:
    keyspace = name.keyspace or session_keyspace
    if keyspace is None:
        raise InvalidRequest("No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename")
    return keyspace

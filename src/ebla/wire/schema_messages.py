"""Schema changes as clients request them. Control adds the rest: ids, placement, conditions."""

import msgspec

from ebla.model.identity import HostId, TableId, TopologyVersion
from ebla.model.schema import Column, TableOptions
from ebla.topology.snapshot import Keyspace


class CreateKeyspaceRequest(msgspec.Struct, frozen=True, array_like=True, tag="create_keyspace"):
    keyspace: Keyspace
    if_not_exists: bool = False


class AlterKeyspaceRequest(msgspec.Struct, frozen=True, array_like=True, tag="alter_keyspace"):
    keyspace: Keyspace


class DropKeyspaceRequest(msgspec.Struct, frozen=True, array_like=True, tag="drop_keyspace"):
    """Also drops its tables."""

    name: str
    if_exists: bool = False


class CreateTableRequest(msgspec.Struct, frozen=True, array_like=True, tag="create_table", kw_only=True):
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    options: TableOptions = TableOptions()
    if_not_exists: bool = False
    min_tablet_count: int = 0


class AlterTableRequest(msgspec.Struct, frozen=True, array_like=True, tag="alter_table", kw_only=True):
    keyspace: str
    name: str
    added: tuple[Column, ...] = ()
    dropped: tuple[str, ...] = ()
    options: TableOptions | None = None
    """Replaces the current options."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Key columns, old and new name."""


class DropTableRequest(msgspec.Struct, frozen=True, array_like=True, tag="drop_table"):
    keyspace: str
    name: str
    if_exists: bool = False


class TruncateTableRequest(msgspec.Struct, frozen=True, array_like=True, tag="truncate_table"):
    """Deletes everything written before: the table continues under a new id, with the same name and definition."""

    keyspace: str
    name: str


SchemaChange = (
    CreateKeyspaceRequest
    | AlterKeyspaceRequest
    | DropKeyspaceRequest
    | CreateTableRequest
    | AlterTableRequest
    | DropTableRequest
    | TruncateTableRequest
)


class SchemaRequest(msgspec.Struct, frozen=True, array_like=True):
    change: SchemaChange


class SchemaAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    changed: bool
    """False: the schema was already so, and `if_not_exists` or `if_exists` allowed that."""
    version: TopologyVersion
    table: TableId | None = None
    unreached: tuple[HostId, ...] = ()
    """Nodes that went down during the change; they will learn of it when they are back."""

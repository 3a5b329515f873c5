"""How a command reaches tables: statements go over CQL to a node of this machine."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.cli.cluster.node_calls import choose_node
from ebla.cli.command import NodeFlags
from ebla.cli.flags import PasswordFile, UserFlag, read_password, split_table_name
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.identity import Address
from ebla.model.schema import TableSchema, decode_schema
from ebla.options import Authenticator, ClientTls
from ebla.source.cql_client import BoundStatement, CqlConnection, CqlRows, CqlSecurity, PageRequest, connect
from ebla.topology.snapshot import Snapshot

CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 60.0
"""Longer than any limit of a node, so that the node reports the timeout and what became of the statement."""


@dataclass(frozen=True, slots=True)
class CqlSession:
    connection: CqlConnection

    def execute(self, text: str, level: ConsistencyLevel = ConsistencyLevel.ONE) -> CqlRows:
        return self.connection.query(BoundStatement(text), level, STATEMENT_TIMEOUT_S, None)

    def pages(self, text: str, level: ConsistencyLevel, page_rows: int) -> Iterator[CqlRows]:
        state: bytes | None = None
        while True:
            page = self.connection.query(
                BoundStatement(text), level, STATEMENT_TIMEOUT_S, PageRequest(page_rows, state)
            )
            yield page
            state = page.paging_state
            if state is None:
                return


@contextmanager
def open_cql(
    data: Path, name: str | None = None, username: str | None = None, password_file: Path | None = None
) -> Iterator[CqlSession]:
    """Connects to the node of that name, or to the first one that runs."""
    node = choose_node(data, name)
    address = Address(node.options.address, node.options.ports.cql)
    with connect(address, _security(node, username, password_file), CONNECT_TIMEOUT_S) as connection:
        yield CqlSession(connection)


def _security(node: LocalNode, username: str | None, password_file: Path | None) -> CqlSecurity:
    if node.options.authenticator is Authenticator.PASSWORD and username is None:
        raise InvalidRequest(f"{node.name} requires a login", advice="name a user with --username")
    is_tls = node.options.client_tls is ClientTls.ON
    return CqlSecurity(
        username=username or "",
        password="" if username is None else read_password(password_file),
        is_tls=is_tls,
        authority_pem=(node.folder.tls / "authority.pem").read_text("utf-8") if is_tls else "",
    )


@dataclass(frozen=True, kw_only=True)
class CqlFlags(NodeFlags):
    username: UserFlag = None
    password_file: PasswordFile = None

    def open_cql(self) -> AbstractContextManager[CqlSession]:
        return open_cql(self.data, self.node, self.username, self.password_file)


def table_schema(snapshot: Snapshot, text: str) -> TableSchema:
    keyspace, name = split_table_name(text)
    table = snapshot.table_named(keyspace, name)
    if table is None:
        raise NotFound(f"there is no table {text}", advice="see `ebla table list`")
    return decode_schema(table.definition)

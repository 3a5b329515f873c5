"""The `ebla` command against one CQL executor: real plans over a dict, no sockets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.cql.world import Cql
from typer.testing import CliRunner, Result

from ebla.cli import command
from ebla.cli.app import app
from ebla.cli.tables import table_access
from ebla.cli.tables.table_access import CqlSession
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.source.cql_client import BoundStatement, CqlRows, read_error
from ebla.topology.snapshot import Snapshot
from ebla.wire.cql import responses
from ebla.wire.cql.messages import Rows
from ebla.wire.cql.notation import BodyReader


class OneNode:
    """`CqlConnection` without a socket. Errors go through their encoding, as a client would receive them."""

    def __init__(self, nodes: int) -> None:
        self._cql = Cql(nodes)
        self.levels: list[str] = []
        self.failing: EblaError | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._cql.topology.snapshot

    def query(
        self, statement: BoundStatement, level: ConsistencyLevel, _timeout_s: float, paging: tuple[int, bytes] | None
    ) -> CqlRows:
        self.levels.append(level.name)
        page_size, state = paging or (None, None)
        try:
            if self.failing is not None:
                raise self.failing
            found = self._cql.run(statement.text, level=level, page_size=page_size, paging_state=state)
        except EblaError as error:
            raise read_error(BodyReader(responses.error(error)), "the node") from None
        if not isinstance(found, Rows):
            return CqlRows()
        columns = tuple(column.name for column in found.columns)
        return CqlRows(columns, tuple(map(tuple, found.rows)), found.paging_state)


class Shell:
    def __init__(self, patch: pytest.MonkeyPatch, nodes: int = 3) -> None:
        self.cluster = OneNode(nodes)
        patch.setattr(table_access, "open_cql", self._open_cql)
        patch.setattr(command, "read_snapshot", lambda _data, _name: self.cluster.snapshot)

    @contextmanager
    def _open_cql(self, *_flags: object) -> Iterator[CqlSession]:
        yield CqlSession(self.cluster)  # type: ignore[arg-type]  # all that a session uses of a connection

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def lines(self, *arguments: str) -> list[str]:
        return self.ok(*arguments).splitlines()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert not result.stdout
        return result.stderr

"""The `ebla` command against a cluster of one process."""

import json
from typing import Any

import pytest
from tests.unit.client.tables_rig import OneProcess
from typer.testing import CliRunner, Result

from ebla.cli.app import app
from ebla.cli.cluster import ring
from ebla.cli.tables import row, table


class Shell:
    def __init__(self, patch: pytest.MonkeyPatch, nodes: int = 3) -> None:
        self.cluster = OneProcess(nodes)
        for module in (table, row, ring):
            patch.setattr(module, "with_table_client", self.cluster.with_table_client)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    def ok(self, *arguments: str) -> str:
        told = self.run(*arguments)
        assert told.exit_code == 0, told.output
        return told.stdout

    def lines(self, *arguments: str) -> list[str]:
        return self.ok(*arguments).splitlines()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        told = self.run(*arguments)
        assert told.exit_code == 1, told.output
        assert not told.stdout
        return told.stderr

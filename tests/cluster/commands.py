"""Runs `ebla` commands against the nodes of a test."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ebla.cli.app import app


def run(data: Path, *command: str, stdin: str | None = None) -> dict[str, Any]:
    """Runs one command in this process."""
    done = CliRunner().invoke(app, [*command, "--data", str(data)], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    result = json.loads(done.stdout) if "--json" in command and "watch" not in command and done.stdout else None
    return {"code": done.exit_code, "text": done.stdout, "errors": done.stderr, "json": result}

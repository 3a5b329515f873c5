"""The table of commands: complete, with the help that each command has itself, and nothing imported before a call."""

import json
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.commands import COMMANDS, load_command

LIST_MODULES = """
import json, sys
sys.argv = ["ebla", *{arguments!r}]
from ebla.__main__ import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def modules_after(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES.format(arguments=arguments)], capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


def ebla_modules(modules: list[str]) -> list[str]:
    return [name for name in modules if name.startswith("ebla.")]


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_the_version_and_the_help_import_no_command(flag: str) -> None:
    modules = modules_after(flag)
    assert ebla_modules(modules) == ["ebla.__main__", "ebla.cli", "ebla.cli.app", "ebla.cli.commands", "ebla.version"]
    assert not {"msgspec", "pydantic", "ssl"} & set(modules)


def test_a_command_imports_only_itself_and_no_certificates() -> None:
    modules = modules_after("status", "--help")
    assert "ebla.cli.cluster.status" in modules
    assert not {"ebla.cli.cluster.group0", "ebla.cli.cluster.up", "ebla.source", "cryptography"} & set(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_lists_each_command_with_the_first_words_of_its_own_help(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert " ".join((command.help or "").strip().split("\n\n")[0].split()) == COMMANDS[name].help
    assert not command.hidden


def test_no_command_of_a_module_is_forgotten() -> None:
    for one in COMMANDS.values():
        found = one.load()
        names = set(typer.main.get_group(found).commands) if not isinstance(found.info.name, str) else {found.info.name}
        assert names <= set(COMMANDS)


def test_a_command_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    done = CliRunner().invoke(app, ["statsu"])
    assert done.exit_code == 2
    assert "status" in done.output

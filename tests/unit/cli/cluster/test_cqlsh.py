import configparser
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.cluster import cqlsh
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.errors import InvalidRequest, Unavailable
from ebla.options import ClientTls, NodeOptions


class Steps:
    """Records commands instead of running them."""

    def __init__(self, *statuses: int) -> None:
        self.run: list[Sequence[str]] = []
        self.said: list[str] = []
        self._statuses = list(statuses)

    def __call__(self, command: Sequence[str]) -> int:
        self.run.append(command)
        return self._statuses.pop(0)


def test_it_is_installed_once(tmp_path: Path) -> None:
    environment = tmp_path / "cache" / "cqlsh"
    steps = Steps(0, 0)
    python = cqlsh.ensure_installed(environment, steps, steps.said.append)
    assert python == environment / "bin" / "python"
    assert steps.said == [f"installing cqlsh into {environment}, once …"]
    assert [command[1:3] for command in steps.run] == [("-m", "venv"), ("-m", "pip")]
    assert "cqlsh==" in Path(steps.run[1][-1]).read_text()
    assert cqlsh.ensure_installed(environment, Steps(), steps.said.append) == python
    assert len(steps.said) == 1


def test_what_was_left_half_made_is_made_again(tmp_path: Path) -> None:
    environment = tmp_path / "cqlsh"
    steps = Steps(0, 1)
    with pytest.raises(Unavailable, match="could not be installed"):
        cqlsh.ensure_installed(environment, steps, steps.said.append)
    again = Steps(0, 0)
    cqlsh.ensure_installed(environment, again, again.said.append)
    assert len(again.run) == 2


def test_another_list_of_packages_is_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = cqlsh.default_environment()
    assert first.is_relative_to(tmp_path)
    monkeypatch.setattr(cqlsh, "requirements", lambda: "cqlsh==7")
    assert cqlsh.default_environment() != first


def node(tls: ClientTls) -> LocalNode:
    return LocalNode("node1", Path("options.toml"), NodeOptions(data="/data", address="127.0.0.3", client_tls=tls))


def test_what_it_is_called_with() -> None:
    plain = node(ClientTls.OFF)
    assert cqlsh.arguments_for(plain, ["-e", "SELECT 1"]) == ["-e", "SELECT 1", "127.0.0.3", "9042"]
    assert cqlsh.cqlsh_process_environment(plain) == {}
    guarded = node(ClientTls.ON)
    assert cqlsh.arguments_for(guarded, []) == ["--ssl", "127.0.0.3", "9042"]
    assert cqlsh.arguments_for(guarded, ["--ssl"]) == ["--ssl", "127.0.0.3", "9042"]
    assert cqlsh.cqlsh_process_environment(guarded) == {
        "SSL_CERTFILE": str(guarded.folder.tls / "authority.pem"),
        "SSL_VALIDATE": "true",
    }


@pytest.mark.parametrize(
    "argument", ["-p", "-psecret", "-p=secret", "--password", "--password=secret", "--passw", "-Cp"]
)
def test_a_password_among_the_arguments_is_refused(argument: str) -> None:
    with pytest.raises(InvalidRequest, match="not accepted as an argument"):
        cqlsh.login_arguments(["-u", "admin", argument, "secret"], None)
    result = CliRunner().invoke(app, ["cqlsh", "-u", "admin", argument, "secret"])
    assert result.exit_code == 1
    assert "--password-file FILE" in result.stderr


def test_a_password_is_handed_on_by_a_file_that_cqlsh_accepts() -> None:
    option, path = cqlsh.login_arguments(["-u", "admin", "-e", "SELECT 1"], "100% #secret; = x")
    assert option == "--credentials"
    # As cqlsh checks and reads it.
    status = os.stat(path)
    assert status.st_uid == os.getuid()
    assert status.st_mode & 0o077 == 0
    credentials = configparser.RawConfigParser()
    assert credentials.read(path) == [path]
    assert credentials.get("plain_text_auth", "password") == "100% #secret; = x"
    assert os.get_inheritable(int(path.rpartition("/")[2])), "cqlsh, which replaces this process, has it too"
    os.close(int(path.rpartition("/")[2]))


def test_cqlsh_asks_itself_where_no_password_is_given() -> None:
    assert cqlsh.login_arguments(["-u", "admin"], None) == []
    assert cqlsh.login_arguments(["-e", "SELECT 1"], "for another command") == []
    with pytest.raises(InvalidRequest, match="cannot hold"):
        cqlsh.login_arguments(["-u", "admin"], "ends with a space ")

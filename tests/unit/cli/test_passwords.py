"""Where commands take a password from, and that nothing they start can see it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.spark_jobs import spark
from ebla.cli.spark_jobs.user_spark import UserSpark, spark_process_environment
from ebla.cql.authentication import parse_password_hash


def hashed(*arguments: str, typed: str = "") -> str:
    result = CliRunner().invoke(app, ["hash-password", *arguments], input=typed)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.split()  # the runner echoes an empty line where a terminal would hide what is typed
    return line


def test_a_password_is_prompted_for_on_standard_error() -> None:
    assert parse_password_hash(hashed(typed="secret\nsecret\n")).is_of("secret")


def test_a_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBLA_PASSWORD", "from the environment")
    assert parse_password_hash(hashed()).is_of("from the environment")
    (tmp_path / "file").write_text("from a file\nand no second line\n")
    assert parse_password_hash(hashed("--password-file", str(tmp_path / "file"))).is_of("from a file")
    result = CliRunner().invoke(app, ["hash-password", "--password-file", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "ebla: the password file cannot be read" in result.stderr


def test_no_command_takes_a_password_as_an_argument() -> None:
    assert CliRunner().invoke(app, ["hash-password", "--password", "secret"]).exit_code == 2


def test_the_environment_of_spark_has_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    class Replaced(Exception):
        """By the shell."""

    def execve(_path: str, _command: Sequence[str], environment: dict[str, str]) -> None:
        started.append(environment)
        raise Replaced

    monkeypatch.setenv("EBLA_PASSWORD", "hunter2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ebla").mkdir()
    monkeypatch.setattr("os.execve", execve)
    found = UserSpark({}, {"JAVA_HOME": "/j"}, Path("/s"))
    with pytest.raises(Replaced):
        spark.exec_pyspark(found, {"contact": "h:1", "password": "hunter2"}, [])
    (environment,) = started
    assert environment["JAVA_HOME"] == "/j"
    assert "hunter2" not in str(environment)
    assert "hunter2" not in str(spark_process_environment(found))
    monkeypatch.setenv(spark.OPTIONS_VARIABLE, environment[spark.OPTIONS_VARIABLE])
    shell: dict[str, object] = {}
    exec(spark.STARTUP, shell)  # as the shell runs it
    assert shell["cluster"] == {"contact": "h:1", "password": "hunter2"}

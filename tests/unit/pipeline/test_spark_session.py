"""What the end of Spark's Java process says about its archive of classes, and the secret of a Spark cluster."""

import signal
from pathlib import Path

import pytest

from ebla.pipeline.spark_session import SparkStart, has_crashed, read_secret, write_secret
from ebla.pipeline.spark_settings import SparkOptions
from ebla.ports.transfer_engine import PipelineUnavailable


@pytest.mark.parametrize("exit_code", [0, 1, 137, -signal.SIGABRT, -signal.SIGSEGV])
def test_an_archive_may_be_why_it_ended(exit_code: int) -> None:
    assert has_crashed(exit_code)


@pytest.mark.parametrize("exit_code", [None, -signal.SIGKILL, -signal.SIGTERM])
def test_who_runs_or_was_ended_says_nothing_about_it(exit_code: int | None) -> None:
    assert not has_crashed(exit_code)


# ---- the secret of a cluster


def of_cluster(secret_file: Path | None = None, *, authenticate: bool = True) -> SparkOptions:
    return SparkOptions(
        folder=Path("/data"), master="spark://a:7077", secret_file=secret_file, authenticate=authenticate
    )


def test_a_cluster_without_a_secret_is_used_only_if_that_is_asked_for() -> None:
    with pytest.raises(PipelineUnavailable, match=r"no secret for spark://a:7077.*pipeline\.authenticate = false"):
        SparkStart(of_cluster()).run()
    assert read_secret(of_cluster(authenticate=False)) is None
    assert read_secret(SparkOptions(folder=Path("/data"))) is None


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("secret", 0o640, "can be read by others"),
        ("secret", 0o604, "can be read by others"),
        ("", 0o600, "holds no secret"),
        ("two\nlines", 0o600, "holds no secret"),
        ("gehe\u00efm", 0o600, "cannot be read"),
        (None, 0, "cannot be read"),
    ],
)
def test_a_secret_that_cannot_be_used_says_why(tmp_path: Path, content: str | None, mode: int, words: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content, "utf-8")
        path.chmod(mode)
    with pytest.raises(PipelineUnavailable, match=words):
        read_secret(of_cluster(path))


def test_a_secret_is_passed_to_spark_by_a_file_of_its_owner(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known to both\n")
    (tmp_path / "secret").chmod(0o600)
    secret = read_secret(of_cluster(tmp_path / "secret"))
    assert secret == "known to both"
    path = write_secret(tmp_path, secret)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "spark.authenticate.secret=known to both\n"

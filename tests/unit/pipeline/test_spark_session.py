"""What the end of Spark's Java process says about its archive of classes."""

import signal

import pytest

from ebla.pipeline.spark_session import has_crashed


@pytest.mark.parametrize("exit_code", [0, 1, 137, -signal.SIGABRT, -signal.SIGSEGV])
def test_an_archive_may_be_why_it_ended(exit_code: int) -> None:
    assert has_crashed(exit_code)


@pytest.mark.parametrize("exit_code", [None, -signal.SIGKILL, -signal.SIGTERM])
def test_who_runs_or_was_ended_says_nothing_about_it(exit_code: int | None) -> None:
    assert not has_crashed(exit_code)

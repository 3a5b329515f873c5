"""Runs every `async def test_…` as `async_tests.py` describes."""

import pytest
from tests.async_tests import run_async_test


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "runs_in(rig, …): what an `async def` test runs in; `tests/async_tests.py`")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async_test(pyfuncitem)

import json

import pytest

from ebla.model.errors import InvalidRequest
from ebla.model.lease_settings import LeaseSettings
from ebla.settings_store.registry import LEASES


def test_the_defaults_fit_together() -> None:
    assert LEASES.decode(b"{}") == LeaseSettings()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"period_ms": 3_999}, "period_ms"),
        ({"period_ms": 120_001}, "period_ms"),
        ({"activity_stop_ms": 499}, "activity_stop_ms"),
        ({"retry_backoff_ms": 99}, "retry_backoff_ms"),
        ({"retry_backoff_ms": 5_001}, "retry_backoff_ms"),
        ({"grace_ms": 3_999}, "activity_stop_ms + 1000 must not exceed grace_ms"),
        ({"grace_ms": 7_501}, "grace_ms must not exceed half of period_ms"),
    ],
)
def test_a_violation_names_the_values_and_the_rule(change: dict[str, int], rule: str) -> None:
    with pytest.raises(InvalidRequest, match="leases") as raised:
        LEASES.decode(json.dumps(change).encode())
    assert rule in raised.value.message
    assert all(str(value) in raised.value.message for value in change.values())


@pytest.mark.parametrize(
    "value",
    [
        {"period_ms": 4_000, "grace_ms": 2_000, "activity_stop_ms": 1_000, "retry_backoff_ms": 100},
        {"period_ms": 120_000, "grace_ms": 60_000, "activity_stop_ms": 59_000, "retry_backoff_ms": 5_000},
    ],
)
def test_the_bounds_themselves_are_allowed(value: dict[str, int]) -> None:
    LEASES.decode(json.dumps(value).encode())

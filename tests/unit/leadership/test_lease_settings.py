import msgspec
import pytest

from ebla.leadership.lease_settings import LeaseSettings, check_lease_settings
from ebla.model.errors import InvalidRequest


def test_the_defaults_fit_together() -> None:
    check_lease_settings(LeaseSettings())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"period_ms": 3_999}, "from 4000 to 120000"),
        ({"period_ms": 120_001}, "from 4000 to 120000"),
        ({"activity_stop_ms": 499}, "from 500 to"),
        ({"retry_backoff_ms": 99}, "from 100 to 5000"),
        ({"retry_backoff_ms": 5_001}, "from 100 to 5000"),
        ({"grace_ms": 3_999}, "activity_stop_ms + 1000 must not exceed grace_ms"),
        ({"grace_ms": 7_501}, "grace_ms must not exceed half of period_ms"),
    ],
)
def test_a_violation_names_the_values_and_the_rule(change: dict[str, int], rule: str) -> None:
    with pytest.raises(InvalidRequest, match="leases") as raised:
        check_lease_settings(msgspec.structs.replace(LeaseSettings(), **change))
    assert rule in raised.value.message
    assert all(f"{name}={value}" in raised.value.message for name, value in change.items())


@pytest.mark.parametrize(
    "settings",
    [
        LeaseSettings(period_ms=4_000, grace_ms=2_000, activity_stop_ms=1_000, retry_backoff_ms=100),
        LeaseSettings(period_ms=120_000, grace_ms=60_000, activity_stop_ms=59_000, retry_backoff_ms=5_000),
    ],
)
def test_the_bounds_themselves_are_allowed(settings: LeaseSettings) -> None:
    check_lease_settings(settings)

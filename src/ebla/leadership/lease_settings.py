"""The four numbers of the setting `leases`, checked together."""

import msgspec

from ebla.model.errors import InvalidRequest

PERIOD_MS_MIN = 4_000
PERIOD_MS_MAX = 120_000
ACTIVITY_STOP_MS_MIN = 500
RETRY_BACKOFF_MS_MIN = 100
RETRY_BACKOFF_MS_MAX = 5_000
STOP_MARGIN_MS = 1_000
"""The leader notices a loss, cancels and counts within this time, beside the time that activities get to stop."""


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    period_ms: int = 15_000
    """For how long a node promises to serve one leader only."""
    grace_ms: int = 5_000
    """How long before the end of a node's promise the leader gives the lease up."""
    activity_stop_ms: int = 3_000
    """How long a cancelled activity may take to end before its process is ended."""
    retry_backoff_ms: int = 500
    """The leader's first pause after a failed request for a lease."""


def check_lease_settings(settings: LeaseSettings) -> None:
    """Raises `InvalidRequest` with the values and the rule that they break."""
    ranges = (
        ("period_ms", settings.period_ms, PERIOD_MS_MIN, PERIOD_MS_MAX),
        ("activity_stop_ms", settings.activity_stop_ms, ACTIVITY_STOP_MS_MIN, PERIOD_MS_MAX),
        ("retry_backoff_ms", settings.retry_backoff_ms, RETRY_BACKOFF_MS_MIN, RETRY_BACKOFF_MS_MAX),
    )
    for name, value, least, most in ranges:
        if not least <= value <= most:
            raise _invalid(f"{name} is {value}, and it must be from {least} to {most}", settings)
    if settings.activity_stop_ms + STOP_MARGIN_MS > settings.grace_ms:
        raise _invalid(f"activity_stop_ms + {STOP_MARGIN_MS} must not exceed grace_ms", settings)
    if 2 * settings.grace_ms > settings.period_ms:
        raise _invalid("grace_ms must not exceed half of period_ms", settings)


def _invalid(rule: str, settings: LeaseSettings) -> InvalidRequest:
    values = ", ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(settings).items())
    return InvalidRequest(f"leases: {rule} ({values})", advice="nothing was changed; choose values that fit together")

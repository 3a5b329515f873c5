"""The four numbers of the setting `leases`, checked together."""

from typing import Annotated

import msgspec

PERIOD_MS_MIN = 4_000
PERIOD_MS_MAX = 120_000
STOP_MARGIN_MS = 1_000
"""The leader notices a loss, cancels and counts within this time, beside the time that activities get to stop."""


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    period_ms: Annotated[int, msgspec.Meta(ge=PERIOD_MS_MIN, le=PERIOD_MS_MAX)] = 15_000
    """For how long a node promises to serve one leader only."""
    grace_ms: Annotated[int, msgspec.Meta(ge=0, le=PERIOD_MS_MAX)] = 5_000
    """How long before the end of a node's promise the leader gives the lease up."""
    activity_stop_ms: Annotated[int, msgspec.Meta(ge=500, le=PERIOD_MS_MAX)] = 3_000
    """How long a cancelled activity may take to end before its process is ended."""
    retry_backoff_ms: Annotated[int, msgspec.Meta(ge=100, le=5_000)] = 500
    """The leader's first pause after a failed request for a lease."""


def lease_settings_problem(settings: LeaseSettings) -> str:
    """The rule that the numbers break together; empty if they fit."""
    if settings.activity_stop_ms + STOP_MARGIN_MS > settings.grace_ms:
        return f"activity_stop_ms + {STOP_MARGIN_MS} must not exceed grace_ms"
    if 2 * settings.grace_ms > settings.period_ms:
        return "grace_ms must not exceed half of period_ms"
    return ""

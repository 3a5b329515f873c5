"""Which release of Ebla this is, and what it can do that earlier ones cannot."""

import enum

DATA_FORMAT = 2
"""Of a node's folder. 2: stores have ids, and the mark names them."""


class Feature(enum.StrEnum):
    """The cluster features of this release. One is used only once every member has it; see `topology/features.py`."""

    SETTINGS_PURGE = "settings-purge"
    LEADER_LEASES = "leader-leases"
    MEMBERSHIP_LOCK = "membership-lock"
    """Membership entries without a lock are rejected."""


def release() -> str:
    from importlib.metadata import version  # every command line would pay for it, and few ask

    return version("ebla")

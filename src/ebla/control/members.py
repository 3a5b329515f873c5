"""Who belongs to the cluster, as the parts of control ask for it."""

from typing import Protocol

from ebla.model.identity import Address


class Members(Protocol):
    def peers(self) -> tuple[Address, ...]:
        """Where the control processes of the other members listen, sorted. May differ from call to call."""
        ...


class ConfiguredMembers:
    """The peers named in the options file: all that is known before group 0 holds the membership."""

    def __init__(self, peers: tuple[Address, ...]) -> None:
        self._peers = tuple(sorted(peers))

    def peers(self) -> tuple[Address, ...]:
        return self._peers

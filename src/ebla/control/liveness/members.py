"""Who belongs to the cluster, as the parts of control ask for it."""

from typing import Protocol

from ebla.model.identity import Address


class PeerAddresses(Protocol):
    def peers(self) -> tuple[Address, ...]:
        """Where the control processes of the other members listen, sorted. May differ from call to call."""
        ...

"""How long a login waits after failed ones from the same address. Pure.

Guessing a password takes many attempts. After `FAILURES_FREE` failures each further attempt of the address waits, twice
as long as the one before, until the address has had no failure for `WINDOW_MS`. Connections are spread over the shards
of a node, and each shard counts for itself.
"""

from collections import OrderedDict
from dataclasses import dataclass

FAILURES_FREE = 5
WINDOW_MS = 60_000
DELAY_FIRST_MS = 1_000
DELAY_MAX_MS = 30_000
ADDRESSES_MAX = 10_000
"""Beyond that the address that failed longest ago is forgotten."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_ms: int
    next_delay_ms: int = DELAY_FIRST_MS


class FailedLogins:
    def __init__(self) -> None:
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()
        """The address that failed last is the last one."""

    def take_delay_ms(self, address: str, now_ms: int) -> int:
        """How long an attempt that begins now has to wait. The next one waits longer, whether this one fails or not:
        many attempts may begin before the first has failed."""
        known = self._current(address, now_ms)
        if known is None or known.count < FAILURES_FREE:
            return 0
        delay_ms = known.next_delay_ms
        known.next_delay_ms = min(2 * delay_ms, DELAY_MAX_MS)
        return delay_ms

    def failed(self, address: str, now_ms: int) -> None:
        known = self._current(address, now_ms)
        if known is None:
            self._by_address[address] = known = _Failures(0, now_ms)
            if len(self._by_address) > ADDRESSES_MAX:
                self._by_address.popitem(last=False)
        known.count += 1
        known.last_ms = now_ms
        self._by_address.move_to_end(address)

    def _current(self, address: str, now_ms: int) -> _Failures | None:
        known = self._by_address.get(address)
        if known is not None and now_ms - known.last_ms > WINDOW_MS:
            del self._by_address[address]
            return None
        return known

"""The bounds of a connection."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    frame_bytes_max: int = 16 * 1024 * 1024
    in_flight_requests_max: int = 1024
    """Requests of one client that are sent and not answered."""
    in_flight_bytes_max: int = 32 * 1024 * 1024
    waiting_requests_max: int = 4096
    """Requests of one client that wait for room; one more is refused at once."""
    admission_wait_ms: int = 1000
    """How long one of them waits before it is refused."""
    notice_queue_bytes_max: int = 8 * 1024 * 1024
    """Notices are dropped while more bytes than this wait for the network."""
    running_requests_max: int = 1024
    """Requests of one connection that a server runs at once."""
    answer_queue_bytes_max: int = 64 * 1024 * 1024
    """A peer that leaves more answers than this unread is disconnected."""
    served_links_max: int = 4096
    unintroduced_links_max: int = 256
    """Connections that have not greeted yet."""
    hello_ms: int = 5000
    connect_ms: int = 3000
    """For connecting and greeting together, on the client side."""
    silent_deadlines_max: int = 3
    silent_ms_max: int = 3000
    """A connection is closed and reopened after this many deadlines and this much time without a frame from the
    peer."""
    backoff_first_ms: int = 50
    backoff_max_ms: int = 1000
    deadline_slack_ms: int = 5
    """Passed deadlines are noticed at most this late, so that one timer serves many."""

    def __post_init__(self) -> None:
        assert self.frame_bytes_max >= 1024
        assert self.frame_bytes_max < 2**32
        assert 0 < self.backoff_first_ms <= self.backoff_max_ms
        assert self.in_flight_requests_max > 0
        assert self.running_requests_max > 0


DEFAULT_WIRE_LIMITS: Final = WireLimits()

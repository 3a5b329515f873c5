"""Every bound of a connection, with its unit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    frame_bytes_max: int = 16 * 1024 * 1024
    in_flight_requests_max: int = 1024
    """Requests of one caller that are sent and not answered."""
    in_flight_bytes_max: int = 32 * 1024 * 1024
    waiting_requests_max: int = 4096
    """Requests of one caller that wait for room; one more is refused at once."""
    admission_wait_ms: int = 1000
    """How long one of them waits before it is refused."""
    notice_queue_bytes_max: int = 8 * 1024 * 1024
    """One-way messages are dropped while more than this waits for the network."""
    running_requests_max: int = 1024
    """Requests of one connection that a server works on at once."""
    answer_queue_bytes_max: int = 64 * 1024 * 1024
    """A peer that leaves more than this unread is cut off."""
    served_links_max: int = 4096
    unintroduced_links_max: int = 256
    """Connections from which no greeting has come yet."""
    hello_ms: int = 5000
    connect_ms: int = 3000
    """For connecting and greeting together, on the side that connects."""
    silent_deadlines_max: int = 3
    silent_ms_max: int = 3000
    """A connection on which this many deadlines passed, and this long went by since the first, without a frame from the
    peer, is made anew."""
    backoff_first_ms: int = 50
    backoff_max_ms: int = 1000
    deadline_slack_ms: int = 5
    """Passed deadlines are noticed at most this late, so that one timer serves many of them."""

    def __post_init__(self) -> None:
        assert self.frame_bytes_max >= 1024
        assert self.frame_bytes_max < 2**32
        assert 0 < self.backoff_first_ms <= self.backoff_max_ms
        assert self.in_flight_requests_max > 0
        assert self.running_requests_max > 0

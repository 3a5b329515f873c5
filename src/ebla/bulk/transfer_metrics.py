"""Counters and gauges of transfers, for status and metrics."""

from ebla.bulk.read_coverage import RangeNotOwned
from ebla.bulk.tickets import TicketRefused
from ebla.feed.session_guards import SessionClosed
from ebla.model.errors import EblaError
from ebla.observe.metrics import Metrics


class TransferMetrics:
    def __init__(self, metrics: Metrics) -> None:
        refused = metrics.counter(
            "bulk_refused_total", "Requests of transfers that were refused, by reason", labels=("reason",)
        )
        self._closed = refused.series("closed_session")
        self._tickets = refused.series("ticket")
        self._not_owned = refused.series("not_owned")
        self._received = metrics.counter(
            "bulk_received_bytes_total", "Bytes that transfers wrote to this node"
        ).series()
        self._sent = metrics.counter("bulk_sent_bytes_total", "Bytes that transfers read from this node").series()
        self.streams = metrics.gauge("bulk_streams", "Open streams of transfers").series()
        self.seals = metrics.counter("bulk_seals_total", "Attempts that were sealed").series()
        self.copied_files = metrics.counter(
            "bulk_copied_files_total", "Staged files that were open for writing at the seal, and were copied"
        ).series()
        self.reads = metrics.gauge("bulk_reads", "Reads of tables with a checkpoint").series()
        self.read_checkpoints = metrics.counter(
            "bulk_read_checkpoints_total", "Checkpoints that were taken for reads of tables"
        ).series()
        self.swept = metrics.counter("bulk_swept_sessions_total", "Sessions whose leftovers were removed").series()

    def refused(self, error: EblaError) -> None:
        if isinstance(error, TicketRefused):
            self._tickets.add()
        elif isinstance(error, SessionClosed):
            self._closed.add()
        elif isinstance(error, RangeNotOwned):
            self._not_owned.add()

    def received(self, size_bytes: int) -> None:
        self._received.add(size_bytes)

    def sent(self, size_bytes: int) -> None:
        self._sent.add(size_bytes)

    @property
    def refused_closed(self) -> int:
        return int(self._closed.value)

    @property
    def refused_tickets(self) -> int:
        return int(self._tickets.value)

    @property
    def received_bytes(self) -> int:
        return int(self._received.value)

    @property
    def sent_bytes(self) -> int:
        return int(self._sent.value)

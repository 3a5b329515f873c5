"""Counters and gauges of transfers, for status and metrics."""

from collections.abc import Iterator
from contextlib import contextmanager

from ebla.bulk.read_coverage import RangeNotOwned
from ebla.bulk.tickets import TicketRefused
from ebla.feed.session_guards import SessionClosed
from ebla.observe.metrics import Metrics


class TransferMetrics:
    def __init__(self, metrics: Metrics) -> None:
        refused = metrics.counter(
            "bulk_refused_total", "Requests of transfers that were refused, by reason", labels=("reason",)
        )
        self.closed_sessions = refused.series("closed_session")
        self.refused_tickets = refused.series("ticket")
        self._not_owned = refused.series("not_owned")
        self.received_bytes = metrics.counter(
            "bulk_received_bytes_total", "Bytes that transfers wrote to this node"
        ).series()
        self.sent_bytes = metrics.counter("bulk_sent_bytes_total", "Bytes that transfers read from this node").series()
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

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except TicketRefused:
            self.refused_tickets.add()
            raise
        except SessionClosed:
            self.closed_sessions.add()
            raise
        except RangeNotOwned:
            self._not_owned.add()
            raise

"""Counters of leases and activities, in the control process."""

from ebla.leadership.activities import EndReason
from ebla.leadership.messages import LeaseReply
from ebla.observe.metrics import Metrics


class LeadershipMetrics:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self._grants = self.metrics.counter("lease_grants_total", "Leases that this node granted").series()
        self._renewals = self.metrics.counter("lease_renewals_total", "Renewals of leases by this node").series()
        self._refusals = self.metrics.counter(
            "lease_refusals_total", "Requests for this node's lease that it refused, by answer", labels=("answer",)
        )
        self.losses = self.metrics.counter("lease_losses_total", "Leases that this node lost as the leader").series()
        self._ends = self.metrics.counter(
            "activities_ended_total", "Activities that ended on this node, by reason", labels=("reason",)
        )

        self.restarts = self.metrics.counter(
            "control_restarts_total", "How often control has started itself again since the node was started"
        ).series()

    def count(self, reply: LeaseReply, *, is_grant: bool) -> None:
        if reply is not LeaseReply.OK:
            self._refusals.series(reply).add()
        elif is_grant:
            self._grants.add()
        else:
            self._renewals.add()

    def count_end(self, reason: EndReason) -> None:
        self._ends.series(reason).add()

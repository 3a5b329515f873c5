"""Counters of operations, in the control process."""

from ebla.observe.metrics import Metrics


class OperationMetrics:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self._ends = self.metrics.counter(
            "operations_total", "Runs of operations on this node, by kind and result", labels=("kind", "result")
        )
        self.lock_mismatches = self.metrics.counter(
            "operation_lock_mismatches_total", "Attempts that ended because another lock was acquired"
        ).series()
        self.repairs = self.metrics.counter(
            "operation_repairs_total", "Unfinished operations that were completed or undone"
        ).series()
        self.excluded = self.metrics.gauge("excluded_hosts", "Hosts that failover has excluded").series()

    def count(self, kind: str, result: str) -> None:
        self._ends.series(kind, result).add()

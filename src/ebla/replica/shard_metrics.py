"""Metrics of a shard. Series are kept as attributes: no request looks up a metric by name."""

import enum
from collections.abc import Sequence

from ebla.model.errors import EblaError, InvalidRequest, Refused, Stale
from ebla.observe.metrics import Metrics
from ebla.wire.row_messages import WriteFailure
from ebla.wire.transfer_messages import AdoptAnswer

_STALE = "stale"


class AdoptionResult(enum.StrEnum):
    ADOPTED = "adopted"
    NOTHING_NEW = "nothing_new"
    REFUSED = "refused"
    FAILED = "failed"


class ShardMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._writes = metrics.counter("replica_writes_total", "Writes acknowledged by this shard's replicas").series()
        self._batches = metrics.counter("replica_write_batches_total", "Requests that brought them").series()
        self._reads = metrics.counter("replica_reads_total", "Reads answered by this shard's replicas").series()
        refused = metrics.counter(
            "replica_stale_total", "Requests refused as routed by an outdated version", labels=("kind",)
        )
        self._stale_writes = refused.series("write")
        self._stale_reads = refused.series("read")
        failed = metrics.counter("replica_failures_total", "Requests that failed otherwise", labels=("kind",))
        self._failed_writes = failed.series("write")
        self._failed_reads = failed.series("read")
        self.streamed = metrics.counter("replica_streamed_items_total", "Items merged for operations").series()
        self.checkpoints = metrics.counter("replica_checkpoints_total", "Checkpoints taken of stacks").series()
        adoptions = metrics.counter(
            "replica_adoptions_total", "Sealed stagings that were to be adopted, by how it ended", labels=("end",)
        )
        self._adoptions = {end: adoptions.series(end) for end in AdoptionResult}
        self._adopted_layers = metrics.counter("replica_adopted_layers_total", "Layers adopted").series()
        self._adopted_rows = metrics.counter("replica_adopted_rows_total", "Staged rows merged").series()
        took = metrics.histogram(
            "replica_seconds", "How long a batch of writes, or a read, took here", labels=("kind",)
        )
        self._write_seconds = took.series("write")
        self._read_seconds = took.series("read")
        self.compactions = metrics.counter(
            "replica_compactions_total", "Compactions of stacks, by how they ended", labels=("end",)
        )
        self.stacks = metrics.gauge("replica_stacks", "Stacks of this shard").series()
        self.layers = metrics.gauge("replica_layers", "Layers of these stacks").series()
        self.load = metrics.gauge("store_load_bytes", "Size of the layers and the commit log").series()
        self.doomed = metrics.gauge("replica_doomed_stacks", "Stacks that wait to be dropped").series()
        self.version = metrics.gauge("topology_version", "The installed version of the topology").series()
        self.oldest_running = metrics.gauge(
            "topology_oldest_running", "The oldest version that a running request holds"
        ).series()
        self.disk_free = metrics.gauge("disk_free_bytes", "Free space of the shard's disk").series()
        self.disk_short = metrics.gauge(
            "disk_reserve_reached", "1 while writes are refused, for less is free than limits.free_disk_bytes_min"
        ).series()
        self.guards = metrics.gauge("replica_guards_held", "Guards of sessions held").series()

    def wrote(self, writes: int, failures: Sequence[WriteFailure], seconds: float) -> None:
        self._batches.value += 1
        self._write_seconds.observe(seconds)
        if failures:
            stale = sum(1 for one in failures if one.error == _STALE)
            self._stale_writes.add(stale)
            self._failed_writes.add(len(failures) - stale)
            writes -= len(failures)
        self._writes.value += writes

    def read(self, seconds: float) -> None:
        self._reads.value += 1
        self._read_seconds.observe(seconds)

    def adopted(self, answer: AdoptAnswer) -> None:
        self._adoptions[AdoptionResult.ADOPTED if answer.layers or answer.rows else AdoptionResult.NOTHING_NEW].add()
        self._adopted_layers.add(answer.layers)
        self._adopted_rows.add(answer.rows)

    def adoption_failed(self, error: EblaError) -> None:
        is_refused = isinstance(error, Refused | InvalidRequest)
        self._adoptions[AdoptionResult.REFUSED if is_refused else AdoptionResult.FAILED].add()

    def read_failed(self, error: EblaError) -> None:
        (self._stale_reads if isinstance(error, Stale) else self._failed_reads).add()

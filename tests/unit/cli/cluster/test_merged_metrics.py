"""Metrics of several processes, merged."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ebla.cli.cluster.metrics import merge_metrics
from ebla.observe.exposition import expose
from ebla.observe.metrics import SERIES_MAX, Metrics
from ebla.wire.metrics_messages import MetricFamily, MetricsAnswer, collect_metrics


def counted(writes: int, seconds: float) -> Metrics:
    metrics = Metrics()
    metrics.counter("writes_total", "Writes.", labels=("end",)).series("done").add(writes)
    metrics.gauge("layers", "Layers.").series().set(writes + 1)
    metrics.histogram("write_seconds", "How long.", bounds=(0.1, 1.0)).series().observe(seconds)
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(expose(metrics).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def over_the_wire(metrics: Metrics) -> MetricsAnswer:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(collect_metrics(metrics)), type=MetricsAnswer)


def test_each_series_says_who_told_it() -> None:
    output = [(("node1", "0"), over_the_wire(counted(3, 0.5))), (("node1", "1"), over_the_wire(counted(5, 2.0)))]
    found = samples(merge_metrics(("node", "shard"), output))
    for shard, writes, seconds in (("0", 3, 0.5), ("1", 5, 2.0)):
        who = (("node", "node1"), ("shard", shard))
        assert found["ebla_writes_total", (("end", "done"), *who)] == writes
        assert found["ebla_layers", who] == writes + 1
        assert found["ebla_write_seconds_sum", who] == seconds
        assert found["ebla_write_seconds_count", who] == 1
        assert found["ebla_write_seconds_bucket", (("le", "1.0"), *who)] == (1 if seconds <= 1 else 0)


def test_what_one_process_tells_is_what_it_counted() -> None:
    metrics = counted(3, 0.05)
    assert samples(merge_metrics((), [((), over_the_wire(metrics))])) == samples(metrics)


def test_many_processes_are_still_told_apart() -> None:
    output = [((str(number),), over_the_wire(counted(number, 1.0))) for number in range(SERIES_MAX + 10)]
    found = samples(merge_metrics(("shard",), output))
    assert sum(1 for name, _ in found if name == "ebla_layers") == SERIES_MAX + 10


def test_a_kind_that_only_a_newer_process_knows_is_left_out() -> None:
    answer = MetricsAnswer(
        (
            MetricFamily(kind="spectrum", name="odd", help="?", labels=(), bounds=(), series=()),
            *collect_metrics(counted(1, 1.0)).metrics,
        )
    )
    assert samples(merge_metrics((), [((), answer)])) == samples(counted(1, 1.0))

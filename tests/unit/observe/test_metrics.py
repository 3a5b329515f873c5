"""Metrics count, stay bounded, and read as Prometheus expects."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebla.observe.exposition import expose
from ebla.observe.metrics import OTHER, SERIES_MAX, Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(expose(metrics).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_is_counted_is_exposed() -> None:
    metrics = Metrics()
    requests = metrics.counter("requests_total", "Requests answered.", labels=("verb",))
    requests.series("read").add()
    requests.series("read").add(2)
    requests.series('od"d\n').add()
    metrics.gauge("open_layers", "Layers open now.").series().set(7)
    metrics.gauge("open_layers", "Layers open now.").series().add(-2)
    assert samples(metrics) == {
        ("ebla_requests_total", (("verb", "read"),)): 3,
        ("ebla_requests_total", (("verb", 'od"d\n'),)): 1,
        ("ebla_open_layers", ()): 5,
    }


def test_a_histogram_counts_at_and_below_each_bound() -> None:
    metrics = Metrics()
    series = metrics.histogram("sync_seconds", "Disk syncs.", bounds=(0.1, 1)).series()
    for value in (0.05, 0.1, 0.5, 7):
        series.observe(value)
    assert samples(metrics) == {
        ("ebla_sync_seconds_bucket", (("le", "0.1"),)): 2,
        ("ebla_sync_seconds_bucket", (("le", "1.0"),)): 3,
        ("ebla_sync_seconds_bucket", (("le", "+Inf"),)): 4,
        ("ebla_sync_seconds_count", ()): 4,
        ("ebla_sync_seconds_sum", ()): pytest.approx(7.65),
    }


def test_labels_are_bounded_and_nothing_goes_uncounted() -> None:
    metrics = Metrics()
    peers = metrics.counter("frames_total", "Frames.", labels=("peer",))
    for number in range(SERIES_MAX * 2):
        peers.series(str(number)).add()
    found = peers.all_series()
    assert len(found) == SERIES_MAX
    assert sum(series.value for _, series in found) == SERIES_MAX * 2
    assert peers.series(OTHER).value == SERIES_MAX + 1
    assert peers.series("0").value == 1


def test_asking_twice_gives_the_same_and_another_shape_is_a_defect() -> None:
    metrics = Metrics()
    first = metrics.counter("requests_total", "Requests.", labels=("verb",))
    assert metrics.counter("requests_total", "Requests.", labels=("verb",)) is first
    with pytest.raises(AssertionError, match="already there"):
        metrics.counter("requests_total", "Requests.")
    with pytest.raises(AssertionError, match="another kind"):
        metrics.gauge("requests_total", "Requests.", labels=("verb",))


def test_two_processes_in_one_python_do_not_share() -> None:
    one, other = Metrics(), Metrics()
    one.gauge("level", "Level.").series().set(1)
    other.gauge("level", "Level.").series().set(2)
    assert samples(one) == {("ebla_level", ()): 1}


def test_misuse_is_a_defect() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError, match="only grows"):
        metrics.counter("done_total", "Done.").series().add(-1)
    with pytest.raises(AssertionError, match="names counters"):
        metrics.counter("done", "Done.")
    with pytest.raises(AssertionError, match="no metric"):
        metrics.gauge("Bad Name", "Bad.")
    with pytest.raises(AssertionError):
        metrics.gauge("level", "Level.", labels=("peer",)).series()
    with pytest.raises(AssertionError):
        metrics.histogram("size_bytes", "Sizes.", bounds=(2, 1))

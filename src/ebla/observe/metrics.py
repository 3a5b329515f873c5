"""Counters, gauges and histograms of one process, with bounded labels.

They are plain numbers without lock, clock or global registry, so that simulated processes can count without breaking
their replay and a hundred of them fit one Python process. `exposition.py` formats them for Prometheus. Only for use on
the loop.
"""

import bisect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

SERIES_MAX: Final = 200
"""Series of one metric. A label with more distinct values belongs in events as a subject."""

OTHER: Final = "other"
"""The label of all series beyond the bound: counted together."""

LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class CounterSeries:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        assert amount >= 0, "a counter only grows"
        self.value += amount


class GaugeSeries:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def add(self, amount: float) -> None:
        self.value += amount


class HistogramSeries:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values were at or below each bound and above the previous one; the last counts those above all."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    name: str
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.labels):
            assert _NAME.fullmatch(name), f"{name!r} is no metric or label name"
        assert self.bounds == tuple(sorted(self.bounds))


class Metric(Generic[S]):
    """One name with a series per combination of label values."""

    def __init__(self, description: Description, new_series: Callable[[], S], series_max: int) -> None:
        self.description = description
        self._series_max = series_max
        self._new_series = new_series
        self._series: dict[tuple[str, ...], S] = {}

    def series(self, *label_values: str) -> S:
        """The same object each time, so that hot code may keep it."""
        assert len(label_values) == len(self.description.labels)
        found = self._series.get(label_values)
        if found is None:
            if len(self._series) >= self._series_max - 1:
                label_values = (OTHER,) * len(label_values)
            found = self._series.setdefault(label_values, self._new_series())
        return found

    def all_series(self) -> list[tuple[tuple[str, ...], S]]:
        """By label values."""
        return sorted(self._series.items(), key=lambda entry: entry[0])


Counter = Metric[CounterSeries]
Gauge = Metric[GaugeSeries]
Histogram = Metric[HistogramSeries]


class Metrics:
    """Every metric of a process, by name. Requesting one twice returns the same object."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Gauge] = {}
        self.histograms: dict[str, Histogram] = {}
        self._homes: dict[str, object] = {}

    def counter(self, name: str, help_text: str, *, labels: Sequence[str] = ()) -> Counter:
        assert name.endswith("_total"), "Prometheus names counters so"
        return self._one(self.counters, Description(name=name, help=help_text, labels=tuple(labels)), CounterSeries)

    def gauge(self, name: str, help_text: str, *, labels: Sequence[str] = ()) -> Gauge:
        return self._one(self.gauges, Description(name=name, help=help_text, labels=tuple(labels)), GaugeSeries)

    def histogram(
        self, name: str, help_text: str, *, bounds: Sequence[float] = LATENCY_BOUNDS_S, labels: Sequence[str] = ()
    ) -> Histogram:
        description = Description(name=name, help=help_text, labels=tuple(labels), bounds=tuple(bounds))
        return self._one(self.histograms, description, lambda: HistogramSeries(description.bounds))

    def _one(self, home: dict[str, Metric[S]], description: Description, new_series: Callable[[], S]) -> Metric[S]:
        name = description.name
        assert self._homes.setdefault(name, home) is home, f"{name} is already there and of another kind"
        metric = home.setdefault(name, Metric(description, new_series, self._series_max))
        assert metric.description == description, f"{name} is already there and different"
        return metric

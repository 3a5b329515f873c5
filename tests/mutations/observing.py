"""Bugs of what an operator sees."""

from tests.mutations.framework import Mutation, PytestCheck

OBSERVE = PytestCheck("tests/unit/observe")

MUTATIONS = (
    Mutation(
        name="observe-full-log-fails-work",
        module="ebla.observe.events",
        function="EventLog.__call__",
        find="with contextlib.suppress(OSError, ValueError):",
        replace="with contextlib.suppress(KeyError):",
        check=OBSERVE,
        why="writes would fail because the disk of the event log is full",
    ),
    Mutation(
        name="observe-labels-unbounded",
        module="ebla.observe.metrics",
        function="Metric.series",
        find="if len(self._series) >= self._series_max - 1:",
        replace="if False:",
        check=OBSERVE,
        why="one metric label per client fills the memory",
    ),
    Mutation(
        name="observe-forged-line",
        module="ebla.observe.sinks",
        function="_value_text",
        find="shown = one_line(value)",
        replace="shown = value",
        check=OBSERVE,
        why="a peer could inject lines into the log",
    ),
)

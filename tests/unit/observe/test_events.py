"""Events from the process to the sink, and what a broken sink does."""

import io
import json

import pytest

from ebla.observe.events import FIELD_CHARS_MAX, EventLog, LogEvent, Severity, Sink
from ebla.observe.sinks import JsonLines


class StoppedClock:
    def boot_ms(self) -> int:
        raise AssertionError("events use the wall clock")

    def wall_us(self) -> int:
        return 1_700_000_000_123_456


def log_to(sink: Sink) -> EventLog:
    return EventLog(StoppedClock(), "shard-1", sink, ("raft.disk_full",))


def test_an_event_has_the_time_of_the_port_and_its_severity() -> None:
    seen: list[LogEvent] = []
    log_to(seen.append)("raft.disk_full", {"term": 3})
    log_to(seen.append)("raft.became_leader", {})
    assert seen[0] == LogEvent(
        wall_us=1_700_000_000_123_456,
        severity=Severity.WARNING,
        name="raft.disk_full",
        subject="shard-1",
        fields={"term": 3},
    )
    assert seen[1].severity is Severity.NOTE


def test_fields_may_be_called_like_parts_of_the_event() -> None:
    out = io.StringIO()
    log_to(JsonLines(out))("area.happened", {"name": "n", "subject": "s", "time": "t"})
    line = json.loads(out.getvalue())
    assert line["subject"] == "shard-1"
    assert (line["name"], line["subject_"], line["time_"]) == ("n", "s", "t")


def test_values_become_numbers_truths_or_bounded_text() -> None:
    seen: list[LogEvent] = []
    log_to(seen.append)("area.happened", {"yes": True, "none": None, "kind": Severity.NOTE, "long": "x" * 9999})
    fields = seen[0].fields
    assert fields["yes"] is True
    assert fields["none"] is None
    assert fields["kind"] == "note"
    assert type(fields["kind"]) is str
    assert len(str(fields["long"])) == FIELD_CHARS_MAX


@pytest.mark.parametrize("name", ["nodots", "Area.happened", "area.", "area.has space", ""])
def test_a_name_is_area_and_what_happened(name: str) -> None:
    with pytest.raises(AssertionError, match="event name"):
        log_to(lambda _event: None)(name, {})


@pytest.mark.parametrize("failure", [BrokenPipeError(), OSError(28, "full"), ValueError("closed file")])
def test_a_sink_that_fails_does_not_fail_the_work(failure: Exception) -> None:
    calls: list[LogEvent] = []

    def broken(event: LogEvent) -> None:
        calls.append(event)
        raise failure

    log_to(broken)("area.happened", {})
    assert len(calls) == 1


def test_a_defect_of_a_sink_is_not_hidden() -> None:
    def defective(event: LogEvent) -> None:
        raise TypeError("ours")

    with pytest.raises(TypeError):
        log_to(defective)("area.happened", {})

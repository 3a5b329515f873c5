"""Events from the observer to the sinks, and what a broken sink does."""

import io
import json

import pytest

from ebla.observe.events import FIELD_CHARS_MAX, LogEvent, Severity
from ebla.observe.observer import Observer
from ebla.observe.sinks import JsonLines


class StoppedClock:
    def boot_ms(self) -> int:
        raise AssertionError("events use the wall clock")

    def wall_us(self) -> int:
        return 1_700_000_000_123_456


def test_an_event_has_the_time_of_the_port() -> None:
    seen: list[LogEvent] = []
    observer = Observer(StoppedClock(), [seen.append])
    observer.emit("raft.became_leader", "node-1", term=3, severity=Severity.WARNING)
    assert seen == [
        LogEvent(
            wall_us=1_700_000_000_123_456,
            severity=Severity.WARNING,
            name="raft.became_leader",
            subject="node-1",
            fields={"term": 3},
        )
    ]


def test_fields_may_be_called_like_parts_of_the_event() -> None:
    out = io.StringIO()
    Observer(StoppedClock(), [JsonLines(out)]).emit("area.happened", "me", name="n", subject="s", time="t")
    line = json.loads(out.getvalue())
    assert line["subject"] == "me"
    assert (line["name"], line["subject_"], line["time_"]) == ("n", "s", "t")


def test_values_become_numbers_truths_or_bounded_text() -> None:
    seen: list[LogEvent] = []
    Observer(StoppedClock(), [seen.append]).emit(
        "area.happened", yes=True, none=None, kind=Severity.NOTE, long="x" * 9999
    )
    fields = seen[0].fields
    assert fields["yes"] is True
    assert fields["none"] is None
    assert fields["kind"] == "note"
    assert type(fields["kind"]) is str
    assert len(str(fields["long"])) == FIELD_CHARS_MAX


@pytest.mark.parametrize("name", ["nodots", "Area.happened", "area.", "area.has space", ""])
def test_a_name_is_area_and_what_happened(name: str) -> None:
    with pytest.raises(AssertionError, match="event name"):
        Observer(StoppedClock()).emit(name)


@pytest.mark.parametrize("failure", [BrokenPipeError(), OSError(28, "full"), ValueError("closed file")])
def test_a_sink_that_fails_is_counted_and_nothing_more(failure: Exception) -> None:
    seen: list[LogEvent] = []

    def broken(event: LogEvent) -> None:
        raise failure

    observer = Observer(StoppedClock(), [broken, seen.append])
    observer.emit("area.happened")
    assert len(seen) == 1
    assert observer.metrics.counters["events_lost_total"].series().value == 1


def test_a_defect_of_a_sink_is_not_hidden() -> None:
    def defective(event: LogEvent) -> None:
        raise TypeError("ours")

    with pytest.raises(TypeError):
        Observer(StoppedClock(), [defective]).emit("area.happened")


def test_a_subject_has_a_story_and_the_process_has_none() -> None:
    observer = Observer(StoppedClock())
    observer.emit("tablet.stage", "tablet-5", stage="streaming")
    observer.emit("process.started")
    assert [event.name for event in observer.story_of("tablet-5").events] == ["tablet.stage"]
    assert observer.story_of("").events == ()

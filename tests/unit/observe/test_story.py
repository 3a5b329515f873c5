"""Stories are in order and bounded in both directions."""

import traceback

from ebla.model.errors import InternalError
from ebla.observe.events import LogEvent, Severity
from ebla.observe.story import Stories


def event(subject: str, number: int) -> LogEvent:
    return LogEvent(wall_us=number, severity=Severity.NOTE, name="area.happened", subject=subject, fields={"n": number})


def numbers(stories: Stories, subject: str) -> list[object]:
    return [event.fields["n"] for event in stories.of(subject).events]


def test_events_of_one_subject_in_order() -> None:
    stories = Stories()
    for number, subject in enumerate(("a", "b", "a")):
        stories.record(event(subject, number))
    assert numbers(stories, "a") == [0, 2]
    assert numbers(stories, "unknown") == []


def test_the_oldest_events_are_forgotten_and_counted() -> None:
    stories = Stories(events_max=3)
    for number in range(5):
        stories.record(event("a", number))
    assert numbers(stories, "a") == [2, 3, 4]
    assert stories.of("a").dropped_events == 2
    assert "2 earlier events" in str(stories.of("a"))


def test_the_longest_silent_subject_goes_first() -> None:
    stories = Stories(stories_max=2)
    for number, subject in enumerate(("a", "b", "a", "c")):
        stories.record(event(subject, number))
    assert stories.subjects() == ("a", "c")
    stories.record(event("b", 9))
    assert stories.of("b").dropped_events == 0
    assert numbers(stories, "b") == [9]


def test_an_error_carries_the_story() -> None:
    stories = Stories()
    stories.record(event("tablet-5", 1))
    error = InternalError("lost the way")
    stories.of("tablet-5").attach(error)
    assert "".join(traceback.format_exception(error)).splitlines()[-2:] == [
        "the story of tablet-5:",
        "  1970-01-01T00:00:00.000001Z area.happened n=1",
    ]


def test_an_empty_story_is_not_attached() -> None:
    error = InternalError("lost the way")
    Stories().of("nobody").attach(error)
    assert not hasattr(error, "__notes__")

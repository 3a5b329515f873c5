"""Lines for machines and for people."""

import io
import json

from ebla.observe.events import FieldValue, LogEvent, Severity
from ebla.observe.sinks import JsonLines, TextLines, one_line, timestamp


def event(severity: Severity = Severity.NOTE, **fields: FieldValue) -> LogEvent:
    return LogEvent(
        wall_us=1_700_000_000_000_007, severity=severity, name="lease.granted", subject="node-2", fields=fields
    )


def test_json_lines() -> None:
    out = io.StringIO()
    sink = JsonLines(out)
    sink(event(ms=15_000, note="two\nlines"))
    sink(event())
    first, second = out.getvalue().splitlines()
    assert json.loads(first) == {
        "time": "2023-11-14T22:13:20.000007Z",
        "severity": "note",
        "event": "lease.granted",
        "subject": "node-2",
        "ms": 15_000,
        "note": "two\nlines",
    }
    assert json.loads(second)["event"] == "lease.granted"


def test_lines_for_people_are_aligned() -> None:
    out = io.StringIO()
    sink = TextLines(out, colour=False)
    sink(event(ms=15_000, to="node 1", empty="", ratio=0.5))
    sink(event(Severity.WARNING))
    first, second = out.getvalue().splitlines()
    assert (
        first
        == '22:13:20.000007   lease.granted                node-2           ms=15000 to="node 1" empty="" ratio=0.5'
    )
    assert second == "22:13:20.000007 ! lease.granted                node-2"


def test_a_log_that_lasts_has_dates() -> None:
    out = io.StringIO()
    TextLines(out, colour=False, dated=True)(event())
    assert out.getvalue().startswith("2023-11-14T22:13:20.000007   lease.granted ")


def test_colour_only_where_asked_for() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    TextLines(plain, colour=False)(event(Severity.WARNING))
    TextLines(coloured, colour=True)(event(Severity.WARNING))
    assert "\x1b" not in plain.getvalue()
    assert "\x1b[33m" in coloured.getvalue()


def test_what_a_peer_sent_cannot_forge_a_line_or_drive_the_terminal() -> None:
    out = io.StringIO()
    forged = LogEvent(
        wall_us=0,
        severity=Severity.NOTE,
        name="join.refused",
        subject="evil\x1b[2J",
        fields={"cause": "x\n00:00:00 all.well"},
    )
    TextLines(out, colour=False)(forged)
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()
    assert one_line("a\tb") == "a\\x09b"


def test_times_before_1970_and_far_away_are_written_too() -> None:
    assert timestamp(-1) == "1969-12-31T23:59:59.999999Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"

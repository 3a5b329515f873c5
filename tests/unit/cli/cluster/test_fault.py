"""`ebla fault` against an answer of a node."""

import json

import pytest
from typer.testing import CliRunner

from ebla.cli import command
from ebla.cli.app import app
from ebla.wire.fault_messages import FaultAction, FaultAnswer, FaultKind, FaultPointView, FaultRequest

POINTS = (FaultPointView(name="purge.pushed", kind=FaultKind.PAUSE, once=True, waiting=1, reached=2),)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[FaultRequest]:
    """What the node is asked."""
    asked: list[FaultRequest] = []

    def call(_data: object, _node: object, _verb: object, request: FaultRequest, _timeout_ms: int) -> FaultAnswer:
        asked.append(request)
        return FaultAnswer(POINTS)

    monkeypatch.setattr(command, "call_node", call)
    return asked


def test_set_sends_the_kind_and_shows_the_points(requests: list[FaultRequest]) -> None:
    shown = CliRunner().invoke(app, ["fault", "set", "purge.pushed", "pause", "--once", "--json"])
    assert shown.exit_code == 0
    assert requests == [FaultRequest(action=FaultAction.SET, name="purge.pushed", kind=FaultKind.PAUSE, once=True)]
    expected = {"name": "purge.pushed", "kind": "pause", "once": True, "waiting": 1, "reached": 2}
    assert json.loads(shown.stdout) == [expected]


@pytest.mark.parametrize("arguments", [("list",), ("release", "purge.pushed"), ("clear",)])
def test_the_other_commands(requests: list[FaultRequest], arguments: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, ["fault", *arguments])
    assert shown.exit_code == 0
    assert "purge.pushed  pause" in shown.stdout
    assert requests == [FaultRequest(action=FaultAction(arguments[0]), name=(*arguments, "")[1])]


def test_an_unknown_kind_is_wrong_usage(requests: list[FaultRequest]) -> None:
    assert CliRunner().invoke(app, ["fault", "set", "purge.pushed", "explode"]).exit_code == 2
    assert requests == []

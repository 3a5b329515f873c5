"""A rolling upgrade of real nodes, by the option `hidden_features`; and fault points on nodes without the option."""

import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.cluster.commands import run
from tests.cluster.conftest import LocalNodes, eventually

HIDDEN, SHOWN = 'hidden_features = ["settings-purge"]', "hidden_features = []"


def advertises(nodes: LocalNodes, count: int) -> bool:
    """Whether so many members advertise the feature."""
    report = run(nodes.data, "group0", "members", "--json")["json"]
    return sum("settings-purge" in member["features"] for member in report["members"]) == count


def restart(nodes: LocalNodes, number: int, process: subprocess.Popen[bytes], line: str) -> subprocess.Popen[bytes]:
    process.kill()
    process.wait(10)
    path = nodes.nodes[number].options_path
    text = path.read_text()
    path.write_text(text.replace(HIDDEN, line).replace(SHOWN, line))
    return nodes.start(number)


def purge(nodes: LocalNodes) -> dict[str, Any]:
    return run(nodes.data, "settings", "purge", "--older-than", "0s", "--timeout", "20s", "--json")


def test_a_feature_is_used_after_the_last_restart_and_required_from_then_on(
    make_nodes: Callable[..., LocalNodes],
) -> None:
    nodes = make_nodes(2, settings=['hidden_features=["settings-purge"]'])
    processes = [nodes.start(number) for number in range(2)]
    nodes.wait_all_up()
    assert run(nodes.data, "settings", "set", "user/a", "1")["code"] == 0
    assert run(nodes.data, "settings", "delete", "user/a")["code"] == 0
    for number in range(2):
        assert advertises(nodes, number)
        refused = purge(nodes)
        assert (refused["code"], refused["json"]["result"]) == (1, "feature_missing")
        processes[number] = restart(nodes, number, processes[number], SHOWN)
        nodes.wait_all_up()
        eventually(partial(advertises, nodes, number + 1), "a restarted node advertises its features")
    eventually(lambda: purge(nodes)["json"]["result"] == "purged", "the purge runs once every node has the feature")
    processes[1] = restart(nodes, 1, processes[1], HIDDEN)
    assert processes[1].wait(30) != 0
    assert "lacks: settings-purge" in nodes.output(1)
    fault = run(nodes.data, "fault", "set", "purge.pushed", "crash", "--json")
    assert (fault["code"], fault["json"]["error"]) == (1, "Refused")

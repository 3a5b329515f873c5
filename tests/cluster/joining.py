"""Nodes that join real nodes: how they are added, paused at fault points, and how their joins end."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.cluster.conftest import LocalNodes
from tests.cluster.group0_load import ask

from ebla.cli.cluster.local_cluster import AddedNodesSpec, LocalNode, add_nodes, last_stop
from ebla.cli.cluster.node_calls import run_async
from ebla.cli.cluster.topology_reports import fetch_report
from ebla.client.topology_view import latest_request
from ebla.control.fault_points import FaultPoint
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import NodeState, RequestOutcome
from ebla.wire.fault_messages import FaultAction, FaultKind, FaultRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.topology_messages import TopologyReport
from ebla.wire.verbs import FAULT, SETTINGS_WRITE

JOIN_S = 120.0
"""Enough for a join with a little data on a busy machine."""
LEASES = '{"period_ms": 4000, "grace_ms": 2000, "activity_stop_ms": 500, "retry_backoff_ms": 200}'
"""So short that a new leader acts a few seconds after the death of the old one."""
LOOK_S = 0.2


def wait_until(condition: Callable[[], object], what: str, seconds: float = JOIN_S) -> float:
    """Returns how long it took. Polls less often than `eventually`: a look at the topology asks several nodes."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic() - began


def host_of(node: LocalNode) -> HostId:
    identity = node.folder.read_identity()
    assert identity is not None
    return identity.host


def report_of(nodes: LocalNodes) -> TopologyReport | None:
    """None if no node answers."""
    try:
        return run_async(fetch_report(nodes.data, None))
    except EblaError:
        return None


def change_setting(node: LocalNode, name: str, value: str) -> None:
    request = SettingsWriteRequest(changes=(SettingChange(name, value),), wait_ms=5_000)
    ask(node, SETTINGS_WRITE, request, 10_000)


@dataclass(frozen=True, slots=True)
class JoinLook:
    request: NodeRequest
    state: NodeState
    """Of the new node's row."""
    cause: str
    """What the join waits for; empty if it makes progress."""


class NewNode:
    """A node that is added and wants to join."""

    def __init__(self, nodes: LocalNodes, settings: Sequence[str] = ()) -> None:
        (self.node,) = add_nodes(nodes.data, AddedNodesSpec(count=1, overrides=tuple(settings)), ())
        self._nodes = nodes
        nodes.nodes.append(self.node)
        self.number = len(nodes.nodes) - 1
        self.host = host_of(self.node)
        self.process: subprocess.Popen[bytes] = nodes.start(self.number)

    def start_again(self) -> None:
        self.process = self._nodes.start(self.number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        wait_until(self.node.is_gone, f"{self.node.name} is gone")

    # ---- its join

    def look(self) -> JoinLook | None:
        """By one report; None if no node answers, or none knows of its request."""
        report = report_of(self._nodes)
        request = None if report is None else latest_request(report, self.host)
        if report is None or request is None:
            return None
        waiting = next((one.waits_for for one in report.open if one.request.id == request.id), None)
        return JoinLook(
            request=request,
            state=next((row.state for row in report.nodes if row.host == self.host), NodeState.LEFT),
            cause="" if waiting is None else waiting.text,
        )

    def wait_request(self) -> NodeRequest:
        return self._wait(lambda _seen: True, "has made a request").request

    def wait_cause(self, text: str, seconds: float = JOIN_S) -> str:
        return self._wait(lambda seen: text in seen.cause, f"waits for {text!r}", seconds).cause

    def wait_normal(self, seconds: float = JOIN_S) -> None:
        seen = self._wait(lambda seen: seen.state is NodeState.NORMAL, "is normal", seconds)
        assert (seen.request.outcome, seen.request.error) == (RequestOutcome.DONE, "")

    def wait_left(self, seconds: float = JOIN_S) -> str:
        """Waits until it is rolled back or rejected, and returns why. Its process may still run."""
        seen = self._wait(lambda seen: seen.state is NodeState.LEFT, "has left", seconds)
        assert seen.request.outcome is RequestOutcome.FAILED
        return seen.request.error

    def _wait(self, is_reached: Callable[[JoinLook], bool], what: str, seconds: float = JOIN_S) -> JoinLook:
        seen: list[JoinLook] = []

        def is_seen() -> bool:
            found = self.look()
            if found is not None and (not seen or seen[-1] != found):
                seen.append(found)
            return found is not None and is_reached(found)

        try:
            wait_until(is_seen, f"{self.node.name} {what}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; seen were {seen[-5:]}") from None
        return seen[-1]

    def wait_end(self) -> str:
        """Waits until its process has ended, with status 1 and the advice to reset it; returns what it printed last.
        Its folder is removed: the next new node gets its name and address, and no node waits for it."""
        status = self.process.wait(JOIN_S)
        assert status == 1, f"status {status}: {self._nodes.output(self.number)[-2_000:]}"
        wait_until(self.node.is_gone, f"{self.node.name} has left no process behind")
        said = last_stop(self.node)
        assert "ebla reset-node" in said, said
        self._nodes.nodes.remove(self.node)
        shutil.rmtree(self.node.folder.path)
        return said


# ---- fault points


def _fault(node: LocalNode, request: FaultRequest) -> int:
    """Returns how many wait at the point."""
    points = ask(node, FAULT, request).points
    return next((point.waiting for point in points if point.name == request.name), 0)


def pause_at(nodes: Sequence[LocalNode], *points: FaultPoint) -> None:
    """Of whichever node leads when it is reached."""
    for node in nodes:
        for point in points:
            _fault(node, FaultRequest(action=FaultAction.SET, name=str(point), kind=FaultKind.PAUSE, once=True))


def wait_paused(nodes: Sequence[LocalNode], point: FaultPoint) -> LocalNode:
    """Returns the node that waits there."""
    found: list[LocalNode] = []

    def look() -> bool:
        for node in nodes:
            with suppress(EblaError):
                if _fault(node, FaultRequest(action=FaultAction.LIST, name=str(point))):
                    found.append(node)
        return bool(found)

    wait_until(look, f"one of the nodes waits at {point}")
    return found[0]


def release(nodes: Sequence[LocalNode], *points: FaultPoint) -> None:
    for node in nodes:
        for point in points:
            with suppress(EblaError):  # it has been killed
                _fault(node, FaultRequest(action=FaultAction.RELEASE, name=str(point)))

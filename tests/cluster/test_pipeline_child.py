"""The pipeline process runs beside the leader of group 0. Java is not needed: without it the process runs, and reports
what it lacks."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from tests.cluster.conftest import LocalNodes, eventually, is_alive
from tests.cluster.group0_load import ask

from ebla.client.cluster_view import NodeView, ProcessView
from ebla.model.lease_settings import LeaseSettings
from ebla.model.records.jobs import PIPELINE_KEY, PipelineState
from ebla.model.stored_value import decode_stored
from ebla.runtime import file_lock
from ebla.wire.group0_messages import Group0ReadRequest, TransferLeadershipRequest
from ebla.wire.leadership_messages import LeadershipRequest
from ebla.wire.verbs import GROUP0_READ, GROUP0_TRANSFER, LEADERSHIP, ProcessState

SETTINGS = ("pipeline.enabled=true", "pipeline.java_home=/nonexistent", "limits.stop_ms=3000")
Make = Callable[..., LocalNodes]


def pipeline_of(node: NodeView) -> ProcessView | None:
    return next((process for process in node.processes if process.is_pipeline), None)


def views(nodes: LocalNodes, among: Sequence[int]) -> dict[int, NodeView]:
    """The status of these nodes, as each reports it."""
    by_name = {view.name: view for view in nodes.view_from(*among).nodes}
    return {number: by_name[nodes.nodes[number].name] for number in among}


def places(nodes: LocalNodes, among: Sequence[int]) -> list[int]:
    """Which of these nodes run one."""
    found = ((number, pipeline_of(view)) for number, view in views(nodes, among).items())
    return [number for number, process in found if process is not None and process.state == ProcessState.RUNNING]


def leader(nodes: LocalNodes, among: Sequence[int]) -> int | None:
    seen = views(nodes, among).items()
    leading = [number for number, view in seen if view.group0 is not None and view.group0.leads]
    return leading[0] if len(leading) == 1 else None


def wait_beside_leader(nodes: LocalNodes, among: Sequence[int]) -> int:
    """Waits until one runs beside the leader; returns where."""
    seen: list[int] = []

    def reached() -> bool:
        seen[:] = places(nodes, among)
        return len(seen) == 1 and seen[0] == leader(nodes, among)

    eventually(reached, "one pipeline runs, beside the leader", 40.0)
    return seen[0]


def lock_is_free(nodes: LocalNodes, number: int) -> bool:
    return file_lock.find_lock_holder(nodes.nodes[number].folder.pipeline_lock) is None


def started(nodes: LocalNodes) -> list[subprocess.Popen[bytes]]:
    controls = [nodes.start(number) for number in range(len(nodes.nodes))]
    nodes.wait_all_up()
    return controls


def test_it_follows_the_lead_when_leaders_are_killed_and_stopped(make_nodes: Make) -> None:
    nodes = make_nodes(3, settings=SETTINGS)
    controls = started(nodes)
    eventually(lambda: all(_votes(view) for view in views(nodes, (0, 1, 2)).values()), "every node votes", 40.0)
    first = wait_beside_leader(nodes, (0, 1, 2))
    pid = nodes.pid("pipeline", first)
    others = [number for number in (0, 1, 2) if number != first]

    os.kill(controls[first].pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), "it dies with its control", 5.0)
    assert wait_beside_leader(nodes, others) in others
    nodes.start(first)
    nodes.wait_all_up()

    second = wait_beside_leader(nodes, (0, 1, 2))
    pid = nodes.pid("pipeline", second)
    rest = [number for number in (0, 1, 2) if number != second]
    control = nodes.pid("control", second)
    os.kill(control, signal.SIGSTOP)
    try:
        third = wait_beside_leader(nodes, rest)
    finally:
        os.kill(control, signal.SIGCONT)
    eventually(lambda: not is_alive(pid), "a leader of the past ends what it has started")
    assert wait_beside_leader(nodes, (0, 1, 2)) == third
    assert lock_is_free(nodes, second)


def test_a_frozen_one_is_killed_when_the_lead_goes_and_only_then_another_acts(make_nodes: Make) -> None:
    nodes = make_nodes(3, settings=(*SETTINGS, "limits.child_silence_ms=60000"))
    started(nodes)
    everyone = (0, 1, 2)
    eventually(lambda: all(_votes(view) for view in views(nodes, everyone).values()), "every node votes", 40.0)
    first = wait_beside_leader(nodes, everyone)
    pid, control = nodes.pid("pipeline", first), nodes.pid("control", first)
    eventually(lambda: _acting_pid(nodes, first) == pid, "it acts", 40.0)
    os.kill(pid, signal.SIGSTOP)
    second = (first + 1) % 3
    successor = nodes.node(second).host
    assert successor is not None
    ask(nodes.nodes[first], GROUP0_TRANSFER, TransferLeadershipRequest(successor))
    asked_at = time.monotonic()

    def is_gone() -> bool:
        # In this order: it may end in between.
        assert not (_runs_jobs(nodes, second) and is_alive(pid)), "two pipelines may act"
        return not is_alive(pid)

    eventually(is_gone, "it is killed, although it does not hear", 10.0)
    assert time.monotonic() - asked_at > LeaseSettings().activity_stop_ms / 1000 - 0.5
    assert wait_beside_leader(nodes, everyone) == second
    eventually(lambda: _acting_pid(nodes, first) == nodes.pid("pipeline", second), "the next one acts", 20.0)
    assert nodes.pid("control", first) == control, "control goes on"


def test_however_often_it_ends_the_node_goes_on(make_nodes: Make) -> None:
    nodes = make_nodes(1, settings=(*SETTINGS, "limits.child_exits_max=2"))
    (control,) = started(nodes)
    for exits in range(1, 4):
        wait_beside_leader(nodes, (0,))
        os.kill(nodes.pid("pipeline"), signal.SIGKILL)
        eventually(lambda: _exits(nodes) == exits, f"exit {exits} is seen")  # noqa: B023  # used at once
    wait_beside_leader(nodes, (0,))
    assert control.poll() is None
    assert nodes.view().all_up


def _votes(view: NodeView) -> bool:
    return view.group0 is not None and view.group0.votes


def _acting_pid(nodes: LocalNodes, asked: int) -> int | None:
    """Of the pipeline that published its state last: it does so when it begins to act."""
    found = ask(nodes.nodes[asked], GROUP0_READ, Group0ReadRequest(keys=(PIPELINE_KEY,))).found
    return decode_stored(PipelineState, found[0].value).value.pid if found else None


def _runs_jobs(nodes: LocalNodes, number: int) -> bool:
    report = ask(nodes.nodes[number], LEADERSHIP, LeadershipRequest())
    return any(one.domain == "pipeline" and one.state == "running" for one in report.activities)


def _exits(nodes: LocalNodes) -> int:
    process = pipeline_of(nodes.node())
    return 0 if process is None else process.restarts

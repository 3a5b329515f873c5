"""What an operation on members costs, how soon an unfinished one is repaired, how soon a dead node is excluded, and how
long a cluster takes to form.

    python -m benchmarks.bench_atomic_change [--before DIR] [--rounds N]

Three nodes on this machine. Nodes that are added do not exist, so that their start is not counted: an addition is timed
from the commit of the request to join until the node is a member. `--before` names another checkout, with an
environment of its own in `.venv`, for the time of `ebla up` from nothing: rounds of both alternate. One line per
figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.cluster.node_calls import control_caller, local_transport, read_topology
from ebla.control.fault_points import FaultPoint
from ebla.group0.commands import Done
from ebla.group0.join_admission import learner_of
from ebla.group0.members import MemberRole
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, RequestId
from ebla.model.transaction import PutKey, Transaction
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import SubmitJoin
from ebla.topology.snapshot import Node, NodeRequest
from ebla.topology.states import NodeRequestKind
from ebla.transfers.record_store import ControlCall
from ebla.version import Feature
from ebla.wire.fault_messages import FaultAction, FaultKind, FaultRequest
from ebla.wire.group0_messages import ExecuteRequest, MembersRequest
from ebla.wire.operation_messages import OperateRequest, OperationsRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import FAULT, GROUP0_EXECUTE, GROUP0_MEMBERS, OPERATE, OPERATIONS, SETTINGS_WRITE

CALL_MS = 30_000
DELAY_MS = 20_000
AFTER_MS = 10_000
PAUSE_S = 0.02
WAITS_MAX = 5_000
CONTROL_PORT = 7_000
NODES = 3
OPERATION_ALLOWED = 8.0
"""Times a group 0 put."""
UP_ALLOWED = 1.1
REPAIR_ALLOWED = 1.2
FAILOVER_ALLOWED = 1.15
"""Times the silence after which a node counts as down, and the time of automatic failover."""
FEATURES = tuple(sorted(feature.value for feature in Feature))


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}


def ebla(checkout: Path, data: Path, *arguments: str) -> None:
    python = str(checkout / ".venv" / "bin" / "python")
    command = [python, "-m", "ebla", *arguments, "--data", str(data)]
    subprocess.run(command, check=True, cwd=checkout, env=environment(checkout), stdout=subprocess.DEVNULL)


def up_s(checkout: Path, data: Path, base_address: str) -> float:
    began = time.monotonic()
    flags = ("--set", "pipeline.enabled=false", "--base-address", base_address)
    ebla(checkout, data, "up", "--no-follow", *flags)
    took = time.monotonic() - began
    ebla(checkout, data, "down")
    shutil.rmtree(data)
    return took


@contextmanager
def running(checkout: Path, data: Path, base_address: str) -> Iterator[None]:
    options = ("--set", "pipeline.enabled=false", "--set", "fault_points=true", "--base-address", base_address)
    ebla(checkout, data, "up", "--no-follow", "--shards", "1", *options)
    try:
        yield
    finally:
        ebla(checkout, data, "down")
        shutil.rmtree(data)


async def timed(call: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def newcomer(number: int) -> Node:
    return Node(
        host=HostId(uuid.uuid4()),
        datacenter="dc1",
        rack="rack1",
        shard_count=1,
        ignore_msb=0,
        release_version="",
        address=f"127.99.0.{number}",
        num_tokens=16,
        supported_features=FEATURES,
    )


async def add(call: ControlCall, transaction: Transaction, node: Node, request: RequestId) -> None:
    """Commits the request to join, as a member does for a new node. The coordinator then adds the node under the id of
    the request, and this operation under the same id joins that run, or runs first."""
    answer = await call(GROUP0_EXECUTE, ExecuteRequest(transaction), CALL_MS)
    assert isinstance(answer.answer, Done), answer
    member = learner_of(node, CONTROL_PORT, request)
    await operate(call, Operation(id=request, kind=OperationKind.ADD_LEARNER, hosts=(node.host,), member=member))


async def submission(call: ControlCall, node: Node, request: RequestId) -> Transaction:
    """Once the topology is idle."""
    while True:
        snapshot = await read_topology(call, CALL_MS)
        if snapshot.node_in_transition() is None:
            break
        await asyncio.sleep(PAUSE_S)
    asked = NodeRequest(id=request, kind=NodeRequestKind.JOIN, host=node.host, initiator=node.host, start_ms=1)
    applied = apply_commands(snapshot, (SubmitJoin(node, asked),))
    assert not isinstance(applied, Rejection), applied
    return applied.transaction


async def operate(call: ControlCall, operation: Operation) -> None:
    answer = await call(OPERATE, OperateRequest(operation, forward=True), CALL_MS)
    assert answer.code is None, answer


async def costs(call: ControlCall, rounds: int) -> dict[str, float]:
    """The median of each, in milliseconds."""
    took: dict[str, list[float]] = {"put": [], "add": [], "remove": []}
    for number in range(1, rounds + 1):
        put = ExecuteRequest(Transaction((), (PutKey("user/bench", str(number).encode()),)))
        took["put"].append(await timed(call(GROUP0_EXECUTE, put, CALL_MS)))
        added, request = newcomer(number), RequestId(uuid.uuid4())
        submitted = await submission(call, added, request)
        took["add"].append(await timed(add(call, submitted, added, request)))
        removal = Operation(id=uuid.uuid4(), kind=OperationKind.REMOVE, hosts=(added.host,))
        took["remove"].append(await timed(operate(call, removal)))
    return {name: statistics.median(values) * 1000 for name, values in took.items()}


async def repair_s(calls: list[ControlCall]) -> float:
    """From the election of the next leader until nothing is unfinished. An entry that is written as it is needs nobody
    but the janitor: no caller asks again."""
    await set_value(calls[0], "janitor_delay_ms", str(DELAY_MS))
    reports = [(await call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)) for call in calls]
    led = next(number for number, report in enumerate(reports) if report.role == "leader")
    fault = FaultRequest(action=FaultAction.SET, name=str(FaultPoint.ATOMIC_KEYS), kind=FaultKind.CRASH, once=True)
    await calls[led](FAULT, fault, CALL_MS)
    others_of = (one.member for one in reports[led].members if one.member.host != reports[led].leader)
    member = next(one for one in others_of if one.present)
    changed = msgspec.structs.replace(member, release="bench")
    refresh = Operation(id=uuid.uuid4(), kind=OperationKind.REFRESH, hosts=(member.host,), member=changed)
    try:
        answer = await calls[led](OPERATE, OperateRequest(refresh), CALL_MS)
    except EblaError:
        pass  # it died
    else:
        raise RuntimeError(f"the leader did not die: {answer}")
    others = [call for number, call in enumerate(calls) if number != led]

    async def has_leader() -> bool:
        return any([(await call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)).role == "leader" for call in others])

    async def is_repaired() -> bool:
        return (await others[0](OPERATIONS, OperationsRequest(), CALL_MS)).unfinished is None

    await wait_for(has_leader)
    began = time.monotonic()
    await wait_for(is_repaired)
    return time.monotonic() - began


async def failover_s(nodes: list[LocalNode], calls: list[ControlCall]) -> float:
    """From the kill of a voter that does not lead until its exclusion is committed."""
    await set_value(calls[0], "auto_failover.after_ms", str(AFTER_MS))
    await set_value(calls[0], "auto_failover.enabled", "true")
    reports = [(await call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)) for call in calls]
    victim = next(number for number, report in enumerate(reports) if report.role != "leader")
    other = next(call for number, call in enumerate(calls) if number != victim)
    pid = nodes[victim].running_pid()
    assert pid is not None, "it was started"

    async def is_excluded() -> bool:
        return bool((await read_topology(other, CALL_MS)).excluded_hosts)

    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    await wait_for(is_excluded)
    return time.monotonic() - began


async def all_vote(call: ControlCall) -> None:
    """Before that, the death of one node may be the end of the majority."""

    async def is_formed() -> bool:
        report = await call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)
        return sum(one.member.role is MemberRole.VOTER for one in report.members) == NODES

    await wait_for(is_formed)


async def set_value(call: ControlCall, name: str, value: str) -> None:
    change = SettingChange(name, value)
    await call(SETTINGS_WRITE, SettingsWriteRequest(changes=(change,), wait_ms=5_000), CALL_MS)


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(WAITS_MAX):
        if await condition():
            return
        await asyncio.sleep(PAUSE_S)
    raise TimeoutError


async def measure_operations(data: Path, rounds: int) -> dict[str, float]:
    async with local_transport() as transport:
        calls = [control_caller(transport, node) for node in find_nodes(data)]
        await all_vote(calls[0])
        medians = await costs(calls[0], rounds)
        figures = {f"{name}_ms": round(value, 2) for name, value in medians.items()}
        figures |= {f"{name}_ratio": round(medians[name] / medians["put"], 2) for name in ("add", "remove")}
        repaired = await repair_s(calls)
    return {**figures, "repair_s": round(repaired, 2), "repair_ratio": round(repaired * 1000 / DELAY_MS, 3)}


async def measure_failover(data: Path) -> dict[str, float]:
    nodes = find_nodes(data)
    least_s = (nodes[0].options.limits.peer_silence_ms + AFTER_MS) / 1000
    async with local_transport() as transport:
        calls = [control_caller(transport, node) for node in nodes]
        await all_vote(calls[0])
        took_s = await failover_s(nodes, calls)
    return {"failover_s": round(took_s, 2), "failover_ratio": round(took_s / least_s, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description="What operations on members cost.")
    parser.add_argument("--before", type=Path, help="another checkout, to compare `ebla up` with")
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    here = Path.cwd()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ebla-") as folder:
        data = Path(folder) / "data"
        if chosen.before is not None:
            took: dict[str, list[float]] = {"now": [], "before": []}
            for _ in range(max(3, chosen.rounds // 5)):
                took["before"].append(up_s(chosen.before.resolve(), data, "127.78.0.1"))
                took["now"].append(up_s(here, data, "127.78.1.1"))
            figures |= {f"up_{name}_s": round(statistics.median(values), 2) for name, values in took.items()}
            figures["up_ratio"] = round(figures["up_now_s"] / figures["up_before_s"], 3)
        with running(here, data, "127.78.2.1"):
            figures |= asyncio.run(measure_operations(data, chosen.rounds))
        with running(here, data, "127.78.3.1"):
            figures |= asyncio.run(measure_failover(data))
    for name, value in figures.items():
        print(f"{name:20} {value}")
    print(json.dumps(figures))
    limits = {"add_ratio": OPERATION_ALLOWED, "remove_ratio": OPERATION_ALLOWED, "up_ratio": UP_ALLOWED}
    limits |= {"repair_ratio": REPAIR_ALLOWED, "failover_ratio": FAILOVER_ALLOWED}
    return 1 if any(figures.get(name, 0.0) > limit for name, limit in limits.items()) else 0


if __name__ == "__main__":
    sys.exit(main())

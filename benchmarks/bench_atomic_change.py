"""What an operation on members costs, how soon an unfinished one is repaired, and how long a cluster takes to form.

    python -m benchmarks.bench_atomic_change [--before DIR] [--rounds N]

Three nodes on this machine. Nodes that are added do not exist, so that their start is not counted. `--before` names
another checkout, with an environment of its own in `.venv`, for the time of `ebla up` from nothing: rounds of both
alternate. One line per figure, the last line is JSON.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ebla.cli.cluster.local_cluster import find_nodes
from ebla.cli.cluster.node_calls import control_caller, local_transport
from ebla.control.fault_points import FaultPoint
from ebla.group0.members import Member, MemberRole
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import Address, HostId
from ebla.model.transaction import PutKey, Transaction
from ebla.topology.snapshot import Node
from ebla.transfers.record_store import ControlCall
from ebla.version import Feature
from ebla.wire.fault_messages import FaultAction, FaultKind, FaultRequest
from ebla.wire.group0_messages import ExecuteRequest, MembersRequest
from ebla.wire.operation_messages import OperateRequest, OperationsRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import FAULT, GROUP0_EXECUTE, GROUP0_MEMBERS, OPERATE, OPERATIONS, SETTINGS_WRITE

CALL_MS = 30_000
DELAY_MS = 20_000
WAITS_MAX = 5_000
OPERATION_ALLOWED = 8.0
"""Times a group 0 put."""
UP_ALLOWED = 1.1
REPAIR_ALLOWED = 1.2
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


async def timed(call: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def newcomer(number: int) -> Operation:
    host, join_id = HostId(uuid.uuid4()), uuid.uuid4()
    member = Member(
        host=host,
        role=MemberRole.LEARNER,
        address=Address(f"127.99.0.{number}", 7000),
        features=FEATURES,
        join_id=join_id,
    )
    row = Node(
        host=host,
        datacenter="dc1",
        rack="rack1",
        shard_count=1,
        ignore_msb=0,
        release_version="",
        address=f"127.99.0.{number}",
        num_tokens=16,
        supported_features=FEATURES,
    )
    return Operation(id=join_id, kind=OperationKind.ADD_LEARNER, hosts=(host,), member=member, node=row)


async def operate(call: ControlCall, operation: Operation) -> None:
    answer = await call(OPERATE, OperateRequest(operation, forward=True), CALL_MS)
    assert answer.code is None, answer


async def costs(call: ControlCall, rounds: int) -> dict[str, float]:
    """The median of each, in milliseconds."""
    took: dict[str, list[float]] = {"put": [], "add": [], "remove": []}
    for number in range(1, rounds + 1):
        put = ExecuteRequest(Transaction((), (PutKey("user/bench", str(number).encode()),)))
        took["put"].append(await timed(call(GROUP0_EXECUTE, put, CALL_MS)))
        added = newcomer(number)
        took["add"].append(await timed(operate(call, added)))
        removal = Operation(id=uuid.uuid4(), kind=OperationKind.REMOVE, hosts=added.hosts)
        took["remove"].append(await timed(operate(call, removal)))
    return {name: statistics.median(values) * 1000 for name, values in took.items()}


async def repair_s(calls: list[ControlCall]) -> float:
    """From the election of the next leader until nothing is unfinished."""
    change = SettingChange("janitor_delay_ms", str(DELAY_MS))
    await calls[0](SETTINGS_WRITE, SettingsWriteRequest(changes=(change,), wait_ms=5_000), CALL_MS)
    reports = [(await call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)) for call in calls]
    led = next(number for number, report in enumerate(reports) if report.role == "leader")
    fault = FaultRequest(action=FaultAction.SET, name=str(FaultPoint.ATOMIC_KEYS), kind=FaultKind.CRASH, once=True)
    await calls[led](FAULT, fault, CALL_MS)
    try:
        await calls[led](OPERATE, OperateRequest(newcomer(200), forward=True), CALL_MS)
    except EblaError:
        pass  # it died
    others = [call for number, call in enumerate(calls) if number != led]

    async def has_leader() -> bool:
        return any([(await call(GROUP0_MEMBERS, MembersRequest(), CALL_MS)).role == "leader" for call in others])

    async def is_repaired() -> bool:
        return (await others[0](OPERATIONS, OperationsRequest(), CALL_MS)).unfinished is None

    await wait_for(has_leader)
    began = time.monotonic()
    await wait_for(is_repaired)
    return time.monotonic() - began


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(WAITS_MAX):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def measure(data: Path, rounds: int) -> dict[str, float]:
    async with local_transport() as transport:
        calls = [control_caller(transport, node) for node in find_nodes(data)]
        medians = await costs(calls[0], rounds)
        figures = {f"{name}_ms": round(value, 2) for name, value in medians.items()}
        figures |= {f"{name}_ratio": round(medians[name] / medians["put"], 2) for name in ("add", "remove")}
        repaired = await repair_s(calls)
    return {**figures, "repair_s": round(repaired, 2), "repair_ratio": round(repaired * 1000 / DELAY_MS, 3)}


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
        options = ("--set", "pipeline.enabled=false", "--set", "fault_points=true", "--base-address", "127.78.2.1")
        ebla(here, data, "up", "--no-follow", "--shards", "1", *options)
        try:
            figures |= asyncio.run(measure(data, chosen.rounds))
        finally:
            ebla(here, data, "down")
    for name, value in figures.items():
        print(f"{name:20} {value}")
    print(json.dumps(figures))
    limits = {"add_ratio": OPERATION_ALLOWED, "remove_ratio": OPERATION_ALLOWED, "up_ratio": UP_ALLOWED}
    limits["repair_ratio"] = REPAIR_ALLOWED
    return 1 if any(figures.get(name, 0.0) > limit for name, limit in limits.items()) else 0


if __name__ == "__main__":
    sys.exit(main())

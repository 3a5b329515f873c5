"""Real nodes that form a group 0."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tests.cluster.conftest import LocalNodes, eventually
from tests.cluster.group0_load import report_of

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.group0.members import MemberRole
from ebla.model.identity import HostId
from ebla.wire.group0_messages import Group0Report

ELECTION_MS = 600
FASTER = ("limits.raft_tick_ms=60", f"limits.raft_election_ms={ELECTION_MS}")


class Group:
    """Nodes that form a group 0, with their roles."""

    def __init__(self, nodes: LocalNodes) -> None:
        self.cluster = nodes
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> list[LocalNode]:
        return self.cluster.nodes

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.processes[number] = self.cluster.start(number)

    def kill(self, *numbers: int) -> float:
        """Kills them together; returns the time."""
        for number in numbers:
            os.kill(self.processes[number].pid, signal.SIGKILL)
        moment = time.monotonic()
        for number in numbers:
            self.processes[number].wait(60)
        return moment

    def report(self, number: int) -> Group0Report | None:
        return report_of(self.nodes[number])

    def host(self, number: int) -> HostId:
        identity = self.nodes[number].folder.read_identity()
        assert identity is not None
        return identity.host

    def is_formed(self) -> bool:
        """Waits until every member votes and has a leader."""
        reports = [self.report(number) for number in range(len(self.nodes))]
        return all(
            report is not None
            and report.leader is not None
            and [each.member.role for each in report.members] == [MemberRole.VOTER] * len(self.nodes)
            for report in reports
        )

    def wait_formed(self) -> None:
        eventually(self.is_formed, "every node votes and knows the leader", 40)

    def leader(self, among: Sequence[int]) -> int:
        """The number of the leading node according to these nodes; waits until there is one."""
        found: list[int] = []

        def look() -> bool:
            for number in among:
                report = self.report(number)
                if report is not None and report.role == "leader":
                    found.append(number)
            return bool(found)

        eventually(look, f"one of {among} leads")
        return found[0]

    def wait_answers(self, *numbers: int) -> None:
        for number in numbers:
            eventually(partial(self.report, number), f"node {number} answers", 30)


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[float]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        os.kill(process.pid, signal.SIGCONT)

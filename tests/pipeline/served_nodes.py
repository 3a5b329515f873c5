"""Three real nodes that a test starts, stops, kills and inspects."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

from tests.cluster.conftest import LocalNodes
from tests.cluster.node_calls import ask_socket

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, SessionId
from ebla.wire.transfer_messages import BulkStatusAnswer, BulkStatusRequest
from ebla.wire.verbs import BULK_STATUS

NODES = 3
PATIENCE_S = 120.0
"""Enough for a job of a few seconds with a restart of Spark on a busy machine."""

STEADY = ("limits.feed_silence_ms=20000", "limits.child_silence_ms=40000")
"""For nodes that many tests share: no test waits for a timeout, and a busy machine must not cause one."""


def slowly(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    """Like `eventually`, for conditions that take seconds: polling all nodes without pause would slow them down."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.25)


class ServedNodes:
    def __init__(self, local: LocalNodes) -> None:
        self.local = local
        self.processes: list[subprocess.Popen[bytes]] = [local.start(number) for number in range(NODES)]
        self.wait_up()

    def node(self, number: int) -> LocalNode:
        return self.local.nodes[number]

    def address(self, number: int) -> str:
        return self.node(number).options.address

    def host(self, number: int) -> HostId:
        identity = self.node(number).folder.read_identity()
        assert identity is not None
        return identity.host

    @property
    def leader(self) -> int:
        found: list[int] = []

        def is_one() -> bool:
            views = self.local.view().nodes
            found[:] = [number for number, view in enumerate(views) if view.group0 is not None and view.group0.leads]
            return len(found) == 1

        slowly(is_one, "there is one leader", 60.0)
        return found[0]

    def wait_up(self) -> None:
        slowly(lambda: self.local.view().all_up, "every node is up, sees the others and serves")

    def kill_node(self, number: int) -> None:
        """Kills all its processes at once."""
        for process in self.local.node(number).processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
        self.processes[number].wait(60)
        slowly(self.node(number).is_gone, f"node {number} is gone")

    def stop_node(self, number: int) -> None:
        self.processes[number].terminate()
        assert self.processes[number].wait(60) == 0
        slowly(self.node(number).is_gone, f"node {number} is gone")

    def start_node(self, number: int) -> None:
        self.processes[number] = self.local.start(number)
        self.wait_up()

    # ---- bulk

    def bulk_status(self, number: int, session: SessionId | None = None) -> BulkStatusAnswer | None:
        """None if it does not answer."""
        try:
            return ask_socket(self.node(number), self.node(number).folder.bulk_socket, BULK_STATUS,
                              BulkStatusRequest(session))  # fmt: skip
        except EblaError:
            return None

    def refused(self, number: int) -> int:
        """Requests for closed sessions that the node has refused."""
        status = self.bulk_status(number)
        assert status is not None
        return status.refused_closed_session

    def wait_clean(self, *, with_streams: bool = True) -> None:
        """INV-XFER-5: no staging, checkpoint or stream is left, on disk or in memory."""
        for number in range(len(self.local.nodes)):
            left: list[object] = []

            def is_clean(number: int = number, left: list[object] = left) -> bool:
                left[:] = self._leftovers(number, with_streams=with_streams)
                return not left

            try:
                slowly(is_clean, f"node {number} is clean", 60.0)
            except AssertionError as error:
                raise AssertionError(f"{error}: {left}") from None

    def _leftovers(self, number: int, *, with_streams: bool) -> list[object]:
        status = self.bulk_status(number)
        if status is None:
            return ["no answer"]
        folder = self.node(number).folder
        staged = [path for path in folder.staging.iterdir() if path.is_dir()]
        streams = ["streams"] * status.streams if with_streams else []
        return [
            *status.stagings,
            *["checkpoints"] * status.checkpoints,
            *streams,
            *staged,
            *folder.checkpoints.iterdir(),
        ]

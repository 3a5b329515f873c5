"""The bulk process of a node: one, long-lived, at low priority. It sends heartbeats to its control process, takes part
in every barrier, runs compactions for the shards, and holds the checkpoints and the staging of transfers."""

import asyncio

from ebla.bulk.bulk_transfers import TransferConfig, open_transfers
from ebla.bulk.compaction_service import CompactionRunner, CompactionService
from ebla.bulk.transfer_service import TransferService
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import View
from ebla.model.identity import Address
from ebla.node.child_process import ChildProcess
from ebla.node.context import NodeContext
from ebla.ports.environment import Environment
from ebla.ports.transport import Listener
from ebla.wire.server import Server
from ebla.wire.verbs import COMPACT

NAME = "bulk"


class BulkProcess(ChildProcess):
    """Follows the topology, with no replicas to prepare. It takes part in every barrier all the same: part of an
    operation that is over may still run here under a guard, and the barrier waits until the guard is released."""

    def __init__(
        self, environment: Environment, node: NodeContext, compactions: CompactionRunner, transfers: TransferConfig
    ) -> None:
        super().__init__(environment, node, NAME, transfers.metrics)
        self._compactions = compactions
        self._transfer_config = transfers
        self.transfers: TransferService | None = None
        """Set once it runs."""
        self._for_peers: Server | None = None

    async def run(self) -> None:
        """Serves until cancelled. Raises where the address is taken."""
        node, config = self.node, self._transfer_config
        async with asyncio.TaskGroup() as tasks:
            context = self.peers_context()
            control = self.control_client(tasks, context)
            follower = self.new_follower(control)
            clock = self.environment.clock
            guards = self.guards = SessionGuards(self.view, follower, clock, config.limits.barrier_ms)
            tasks.create_task(self.send_heartbeats(control))
            tasks.create_task(follower.run())
            local = self.new_server(tasks, context)
            local.serve(COMPACT, CompactionService(self._compactions, node.limits, node.report).serve)
            self._for_peers = self.new_server(tasks, context)
            servers = {node.bulk_socket: local, config.peers_address: self._for_peers}
            transfers = await open_transfers(tasks, self.environment, config, context, view=self.view, guards=guards)
            self.transfers = transfers
            tasks.create_task(transfers.run(config.servers))
            await self._listen(servers, transfers)

    async def _listen(self, servers: dict[Address, Server], transfers: TransferService) -> None:
        """Until cancelled."""
        listeners: list[Listener] = []
        try:
            for address, server in servers.items():
                transfers.attach(server)
                listeners.append(await self.environment.transport.listen(address, server.accept))
            await asyncio.Event().wait()
        finally:
            for listener in listeners:
                await listener.close()
            for server in servers.values():
                server.close("the bulk process stops")

    def on_view_installed(self, view: View) -> None:
        super().on_view_installed(view)
        if self._for_peers is not None:
            self._for_peers.exclude(frozenset(), frozenset(view.snapshot.departed_hosts))
        if self.transfers is not None:
            self.transfers.sessions_changed()

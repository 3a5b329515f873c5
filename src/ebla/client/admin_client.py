"""The operator's questions to one node, each over a connection of its own."""

from ebla.model.identity import Address
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import STATUS, STOP, A, Q, StatusAnswer, StatusRequest, StopRequest, Verb


class AdminClient:
    """`address` is the node's own Unix socket, or its control address where the context has certificates."""

    def __init__(self, context: PeersContext, deadline_ms: int) -> None:
        self._context = context
        self._deadline_ms = deadline_ms

    async def status(self, address: Address) -> StatusAnswer:
        return await self.ask(address, STATUS, StatusRequest())

    async def stop(self, address: Address, reason: str) -> None:
        """Returns once the node has taken note; it goes some time after."""
        await self.ask(address, STOP, StopRequest(reason))

    async def ask(self, address: Address, verb: Verb[Q, A], request: Q, lane: Lane = Lane.CONTROL) -> A:
        caller, _ = await connect(self._context, address, ConnectionTarget(lane))
        try:
            return await caller.call(verb, request, self._deadline_ms)
        finally:
            caller.close("answered")

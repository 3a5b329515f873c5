"""Sends the coordinator's response to a node that is no member."""

import asyncio

from ebla.group0.join_messages import JoinNodeResponse
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import JOIN_NODE_RESPONSE

RESPONSE_S = 30.0
CALL_MS = 2_000
RETRY_S = 1.0


async def send_response(context: PeersContext, address: Address, response: JoinNodeResponse) -> None:
    """For 30 s; then the node has to ask."""
    loop = asyncio.get_running_loop()
    until = loop.time() + RESPONSE_S
    while loop.time() < until:
        try:
            caller, _ = await connect(context, address, ConnectionTarget(Lane.CONTROL))
            try:
                await caller.call(JOIN_NODE_RESPONSE, response, CALL_MS)
            finally:
                caller.close("the response was sent")
        except EblaError:
            await asyncio.sleep(RETRY_S)
        else:
            return

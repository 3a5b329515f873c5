"""How the cluster's authority reaches a new node: two connections, under a join token.

On the first connection nothing is verified and nothing secret is sent: the new node fetches the authority's certificate
and keeps it only if it is the one the token names. On the second that certificate must vouch for the peer before the
token is shown, and then the key comes. An attacker in the middle of the first learns nothing, and cannot be in the
middle of the second.
"""

import asyncio

from ebla.model.errors import Refused
from ebla.model.identity import Address, ClusterId
from ebla.observe.event_reporter import discard_event
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.ports.transport import Link, LinkEvents, Listener, OpenLink
from ebla.runtime.tcp_transport import TcpTransport
from ebla.runtime.tls import Authority, JoiningNodeTls, TlsFolder, check_authority, fingerprint_of
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Introduction, Lane
from ebla.wire.join_token import JoinToken, make_join_token, parse_join_token
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import (
    AUTHORITY,
    HAND_OVER,
    A,
    AuthorityAnswer,
    AuthorityRequest,
    HandOverAnswer,
    HandOverRequest,
    Q,
    Verb,
)


def new_join_token(authority: Authority, lifetime_s: int, clock: Clock, rng: Rng) -> JoinToken:
    assert lifetime_s > 0
    expires_at_s = clock.wall_us() // 1_000_000 + lifetime_s
    return make_join_token(authority.token_key(), authority.fingerprint(), expires_at_s, rng)


class AuthorityService:
    """At a node of the cluster: serves the two verbs, on a server that accepts only peers without a certificate.

    The folder is read for every request: a replaced authority must not be handed out any more.
    """

    def __init__(self, folder: TlsFolder, cluster: ClusterId, clock: Clock, server: Server) -> None:
        self._folder = folder
        self._cluster = cluster
        self._clock = clock
        self._server = server
        server.serve(AUTHORITY, self._show)
        server.serve(HAND_OVER, self._hand_over)

    def _show(self, _request: AuthorityRequest, _call: IncomingCall) -> AuthorityAnswer:
        return AuthorityAnswer(self._folder.authority().certificate_pem)

    def _hand_over(self, request: HandOverRequest, call: IncomingCall) -> HandOverAnswer:
        host = str(call.peer.host)
        authority = self._folder.authority()
        try:
            parse_join_token(request.token).check(authority.token_key(), self._clock.wall_us() // 1_000_000)
        except Refused as error:
            self._server.report("join.token_refused", {"host": host, "cause": error.message})
            raise
        self._server.report("join.authority_handed_over", {"host": host})
        name = self._server.introduction.cluster_name
        return HandOverAnswer(
            cluster=self._cluster,
            cluster_name=name,
            certificate_pem=authority.certificate_pem,
            key_pem=authority.key_pem,
        )


async def fetch_authority(own: Introduction, rng: Rng, address: Address, token: JoinToken) -> HandOverAnswer:
    """For a node that joins. It knows the cluster's name and one member's address. Raises `Refused` where the token or
    the peer is the wrong one, `Unreachable` where the peer does not answer."""

    async def call(tls: JoiningNodeTls, verb: Verb[Q, A], request: Q) -> A:
        async with TcpTransport(tls, discard_event) as transport:
            context = PeersContext(transport=transport, rng=rng, introduction=own, report=discard_event)
            caller, _ = await connect(context, address, ConnectionTarget(Lane.JOIN))
            try:
                async with asyncio.timeout(context.limits.connect_ms / 1000):
                    return await caller.call(verb, request, context.limits.connect_ms)
            finally:
                caller.close("the call has ended")

    shown = await call(JoiningNodeTls(None), AUTHORITY, AuthorityRequest())
    if not token.names_authority(fingerprint_of(shown.certificate_pem)):
        raise Refused(f"{address} belongs to another cluster than the join token")
    handed = await call(JoiningNodeTls(shown.certificate_pem), HAND_OVER, HandOverRequest(str(token)))
    if not token.names_authority(fingerprint_of(handed.certificate_pem)):
        raise Refused(f"{address} handed over another authority than the one it showed")
    check_authority(Authority(handed.certificate_pem, handed.key_pem))
    return handed


# ---- at the control address


JOIN_LIMITS = WireLimits(
    frame_bytes_max=64 * 1024,
    running_requests_max=4,
    answer_queue_bytes_max=256 * 1024,
    served_links_max=64,
    unintroduced_links_max=32,
)
JOIN_LINK_MS = 10_000
"""Far longer than two calls take. Without it, 64 peers that introduce themselves and then send nothing would keep every
joining node out."""


class JoinTransport:
    """`ports.transport.Transport` of a control process: at its address, links without a certificate go to the authority
    service, and never reach its other servers.

    Any peer that can reach the address can open such a link, so they are cheap: few at once, little memory each (the
    transport accepts no large frame from a peer without a certificate), and each is closed after a while."""

    def __init__(
        self, transport: TcpTransport, address: Address, on_join: OpenLink, stay_ms: int = JOIN_LINK_MS
    ) -> None:
        self._transport = transport
        self._address = address
        self._on_join = on_join
        self._stay_ms = stay_ms

    async def connect(self, address: Address, on_open: OpenLink) -> Link:
        return await self._transport.connect(address, on_open)

    async def listen(self, address: Address, on_open: OpenLink) -> Listener:
        on_join = self._open_for_a_while if address == self._address else None
        return await self._transport.listen(address, on_open, on_join)

    def _open_for_a_while(self, link: Link) -> LinkEvents:
        cause = f"a joining node has {self._stay_ms} ms"
        asyncio.get_running_loop().call_later(self._stay_ms / 1000, link.close, cause)
        return self._on_join(link)

"""How the cluster's authority reaches a new node: two connections, under a join token.

On the first nothing is verified and nothing secret is said: the new node asks for the authority's certificate and
keeps it only if it is the one the token names. On the second that certificate must vouch for the peer before the
token is shown, and then the key comes. Somebody in the middle of the first gains nothing, and cannot be in the second.
"""

import asyncio
from dataclasses import dataclass

from ebla.model.errors import Refused
from ebla.model.identity import Address, ClusterId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
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
    """At a node of the cluster: serves the two verbs, on a server that takes only peers without a certificate.

    The folder is read at every question: an authority that was replaced must not be handed out any more.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningNode:
    """A node that wants in. It knows the cluster's name and one member's address."""

    introduction: Introduction
    rng: Rng
    limits: WireLimits
    transport_limits: TransportLimits
    report: EventReporter


async def fetch_authority(newcomer: JoiningNode, address: Address, token: JoinToken) -> HandOverAnswer:
    """Raises `Refused` where the token or the peer is the wrong one, `Unreachable` where nobody answers."""
    shown = await _ask(newcomer, address, JoiningNodeTls(None), AUTHORITY, AuthorityRequest())
    if not token.names_authority(fingerprint_of(shown.certificate_pem)):
        raise Refused(f"{address} belongs to another cluster than the join token")
    trusting = JoiningNodeTls(shown.certificate_pem)
    handed = await _ask(newcomer, address, trusting, HAND_OVER, HandOverRequest(str(token)))
    if not token.names_authority(fingerprint_of(handed.certificate_pem)):
        raise Refused(f"{address} handed over another authority than the one it showed")
    check_authority(Authority(handed.certificate_pem, handed.key_pem))
    return handed


async def _ask(newcomer: JoiningNode, address: Address, tls: JoiningNodeTls, verb: Verb[Q, A], request: Q) -> A:
    async with TcpTransport(tls, newcomer.transport_limits, newcomer.report) as transport:
        context = PeersContext(
            transport=transport,
            rng=newcomer.rng,
            introduction=newcomer.introduction,
            limits=newcomer.limits,
            report=newcomer.report,
        )
        caller, _ = await connect(context, address, ConnectionTarget(Lane.JOIN))
        try:
            async with asyncio.timeout(newcomer.limits.connect_ms / 1000):
                return await caller.call(verb, request, newcomer.limits.connect_ms)
        finally:
            caller.close("the question is answered")

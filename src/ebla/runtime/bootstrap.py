"""The first start of a node: its identity and certificates are made once and kept.

A cluster starts with the node that makes its authority. Every further node gets the authority first, because a node
that makes its own has founded another cluster. On one machine the operator who owns all the folders passes it on as a
file (`ebla up`); between machines a join token does it (`ebla token`, `ebla node --join`).
"""

import asyncio

from ebla.model.errors import DeadlineExceeded, Refused, Unreachable
from ebla.model.identity import Address, ClusterId, HostId
from ebla.options import NodeOptions
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.runtime.authority_handover import fetch_authority
from ebla.runtime.data_folder import DataFolder, NodeIdentity
from ebla.runtime.tls import AUTHORITY_DAYS, Authority, TlsFolder, Validity, make_authority
from ebla.wire.frames import Introduction
from ebla.wire.join_token import JoinToken
from ebla.wire.verbs import HandOverAnswer


def create_cluster(options: NodeOptions, clock: Clock, rng: Rng) -> NodeIdentity:
    """The first node of a new cluster."""
    identity = NodeIdentity(HostId(rng.uuid()), ClusterId(rng.uuid()), options.cluster_name)
    authority = make_authority(identity.cluster, identity.cluster_name, Validity.days(clock, AUTHORITY_DAYS))
    return _store(options, identity, authority, clock)


def join_from_folder(options: NodeOptions, member: DataFolder, clock: Clock, rng: Rng) -> NodeIdentity:
    """A further node, with the authority of a member whose folder this user owns."""
    known = member.read_identity()
    assert known is not None
    if known.cluster_name != options.cluster_name:
        raise Refused(f"{member.path} belongs to cluster {known.cluster_name!r}, not to {options.cluster_name!r}")
    identity = NodeIdentity(HostId(rng.uuid()), known.cluster, known.cluster_name)
    return _store(options, identity, TlsFolder(member.tls).authority(), clock)


def join_by_token(options: NodeOptions, token: JoinToken, clock: Clock, rng: Rng) -> NodeIdentity:
    """A further node; the first of its peers that answers hands over the authority."""
    host = HostId(rng.uuid())
    introduction = Introduction(host=host, cluster=None, cluster_name=options.cluster_name, features=options.features)
    handover = asyncio.run(_first_to_answer(introduction, rng, options.peer_addresses, token))
    identity = NodeIdentity(host, handover.cluster, handover.cluster_name)
    return _store(options, identity, Authority(handover.certificate_pem, handover.key_pem), clock)


def reset_node(options: NodeOptions, clock: Clock, rng: Rng) -> NodeIdentity:
    """Empties the folder and draws a new host id, of the same cluster and with its authority. The caller holds the lock
    of control, and knows that no other node relies on the old one. The identity is replaced last: after a crash in
    between, the node has its old host id and nothing else, cannot join under it, and is reset again."""
    folder = DataFolder(options.folder)
    known = folder.read_identity()
    assert known is not None
    authority = TlsFolder(folder.tls).authority()
    folder.remove_content()
    return _store(options, NodeIdentity(HostId(rng.uuid()), known.cluster, known.cluster_name), authority, clock)


async def _first_to_answer(own: Introduction, rng: Rng, peers: tuple[Address, ...], token: JoinToken) -> HandOverAnswer:
    """Tries the next peer only after a timeout or an unreachable peer: a refusal holds everywhere."""
    unreachable: list[str] = []
    for peer in peers:
        try:
            return await fetch_authority(own, rng, peer, token)
        except (Unreachable, DeadlineExceeded) as error:
            unreachable.append(error.message)
    raise Unreachable(
        "no peer handed over the cluster's authority: " + ("; ".join(unreachable) or "the options name none"),
        advice="name running nodes of the cluster in `peers`",
    )


def _store(options: NodeOptions, identity: NodeIdentity, authority: Authority, clock: Clock) -> NodeIdentity:
    """The identity is written last: an interrupted start leaves a folder that counts as new, and its content is made
    again for the new host id."""
    folder = DataFolder(options.folder)
    folder.lay_out()
    tls = TlsFolder(folder.tls)
    tls.store_authority(authority)
    tls.renew(identity, clock)
    folder.store_identity(identity)
    return identity

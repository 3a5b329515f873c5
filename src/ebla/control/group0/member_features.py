"""The members as the topology sees them: features in use, features a node lacks, who is unsettled; and the entry in
which a node advertises its own features.

A feature is enabled once, by the topology, and never disabled. The topology counts the nodes of the ring only; a member
outside the ring applies group 0's log as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ebla.aio.wakeup import Wakeup
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.group0.members import Member, member_key
from ebla.group0.operations import EndedOperation, Operation, OperationKind, read_record
from ebla.group0.store import Group0Store
from ebla.group0.voters import is_unsettled
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.model.stored_value import decode_stored
from ebla.model.transaction import MEMBERS_PREFIX
from ebla.ports.rng import Rng
from ebla.topology.keys import STATE, node_key
from ebla.topology.snapshot import Node, TopologyState
from ebla.topology.states import NodeState
from ebla.version import Feature

RETRY_MS = 1_000
CHECK_S = 60.0
FEATURES_ADVICE = "start it with a release that has them, and without them in `hidden_features`"


def missing_features(store: Group0Store, supported: tuple[str, ...]) -> tuple[str, ...]:
    """The features that a member with these lacks to start: enabled ones, and those that all present members, itself
    included, have advertised. The leader may be enabling the second kind right now."""
    advertised = _in_all([member.features for member in store.members.values() if member.present])
    needed = sorted({*topology_state(store).enabled_features, *advertised})
    return tuple(feature for feature in needed if feature not in supported)


def why_not_in_use(store: Group0Store, feature: Feature) -> str:
    """Why the cluster must not use the feature yet; empty: it may. It is in use once it is enabled and every present
    member advertises it, in the ring or not."""
    lacking = [str(member.host) for member in store.present_members().members if feature not in member.features]
    if lacking:
        return f"{', '.join(lacking)} runs without {feature}"
    return "" if feature in topology_state(store).enabled_features else f"{feature} is not enabled yet"


def common_features(store: Group0Store) -> tuple[str, ...]:
    """Those that every present member advertises, and the host that an unfinished operation adds."""
    found = read_record(store)
    adding = () if found is None else tuple(member for member in found.value.members if member.present)
    return _in_all([member.features for member in (*store.present_members().members, *adding)])


def _in_all(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(feature for feature in sorted(lists[0]) if all(feature in other for other in lists)) if lists else ()


def topology_state(store: Group0Store) -> TopologyState:
    entry = store.get(STATE)
    return TopologyState() if entry is None else decode_stored(TopologyState, entry.value).value


def unsettled_hosts(store: Group0Store) -> tuple[HostId, ...]:
    """The present members that take no voter's seat because of their rows. None while there is no topology: then the
    members are the founder, and it votes."""
    if store.get(STATE) is None:
        return ()
    transition = topology_state(store).transition
    present = (member.host for _, member in sorted(store.members.items()) if member.present)
    return tuple(host for host in present if is_unsettled(_state_of(store, host), transition))


def _state_of(store: Group0Store, host: HostId) -> NodeState:
    entry = store.get(node_key(host))
    return NodeState.NONE if entry is None else decode_stored(Node, entry.value).value.state


async def keep_own_entry(
    machine: Group0StateMachine,
    own: Member,
    request: Callable[[Operation], Awaitable[EndedOperation | None]],
    rng: Rng,
) -> None:
    """Until cancelled. Has this node's address, features and release in its member entry, whenever the entry
    differs."""
    changed = Wakeup()
    ticket = machine.watch(lambda _step: changed.wake(), MEMBERS_PREFIX)
    try:
        while True:
            if not _differs(machine.store, own):
                await changed.wait(CHECK_S)
                continue
            operation = Operation(id=rng.uuid(), kind=OperationKind.REFRESH, hosts=(own.host,), member=own)
            try:
                await request(operation)
            except EblaError:
                await asyncio.sleep(RETRY_MS / 1000)
    finally:
        machine.unwatch(ticket)


def _differs(store: Group0Store, own: Member) -> bool:
    known = store.members.get(member_key(own.host))
    if known is None or not known.present:
        return False
    return (known.address, known.features, known.release) != (own.address, own.features, own.release)

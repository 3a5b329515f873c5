"""The features of the members: which are in use, which a node lacks, and the entry in which it advertises its own.

A feature is enabled once, by the topology, and never disabled. The topology counts the nodes of the ring only; a member
outside the ring applies group 0's log as well.
"""

import asyncio

import msgspec

from ebla.aio.wakeup import Wakeup
from ebla.control.group0.client import Group0Client, revision_of
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.group0.members import Member, member_key
from ebla.group0.store import Group0Store
from ebla.model.errors import EblaError
from ebla.model.stored_value import decode_stored
from ebla.model.transaction import MEMBERS_PREFIX
from ebla.topology.features import missing_to_join
from ebla.topology.keys import STATE
from ebla.topology.snapshot import TopologyState
from ebla.version import Feature

UPDATE_MS = 5_000
RETRY_MS = 1_000
CHECK_S = 60.0
FEATURES_ADVICE = "start it with a release that has them, and without them in `hidden_features`"


def missing_features(store: Group0Store, supported: tuple[str, ...]) -> tuple[str, ...]:
    """Enabled features that a node with these lacks."""
    return missing_to_join(_topology_state(store), supported)


def why_not_in_use(store: Group0Store, feature: Feature) -> str:
    """Why the cluster must not use the feature yet; empty: it may. It is in use once it is enabled and every present
    member advertises it, in the ring or not."""
    lacking = [str(member.host) for member in store.present_members().members if feature not in member.features]
    if lacking:
        return f"{', '.join(lacking)} runs without {feature}"
    return "" if feature in _topology_state(store).enabled_features else f"{feature} is not enabled yet"


def _topology_state(store: Group0Store) -> TopologyState:
    entry = store.get(STATE)
    return TopologyState() if entry is None else decode_stored(TopologyState, entry.value).value


async def keep_own_entry(client: Group0Client, machine: Group0StateMachine, own: Member) -> None:
    """Until cancelled. Writes this node's features and release into its member entry, whenever the entry differs.

    The leader changes roles in the same entries. Of two changes at one time the later wins: it may undo the role, which
    the leader then changes again, or the features, which this loop then writes again."""
    changed = Wakeup()
    ticket = machine.watch(lambda _step: changed.wake(), MEMBERS_PREFIX)
    try:
        while True:
            wanted = _updated_entry(machine.store, own)
            if wanted is None:
                await changed.wait(CHECK_S)
                continue
            try:
                revision_of(await client.change_members((wanted,), None, UPDATE_MS))
            except EblaError:
                await asyncio.sleep(RETRY_MS / 1000)
    finally:
        machine.unwatch(ticket)


def _updated_entry(store: Group0Store, own: Member) -> Member | None:
    known = store.members.get(member_key(own.host))
    if known is None or not known.present or (known.features, known.release) == (own.features, own.release):
        return None
    return msgspec.structs.replace(known, features=own.features, release=own.release)

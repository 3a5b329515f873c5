"""The cluster as settings see it: members, who is up, the membership fence, and the purge's state in group 0."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from ebla.control.group0.client import BeforeOffer
from ebla.control.group0.node import Group0Node
from ebla.control.liveness.clock_skew import PeerClock
from ebla.control.liveness.failure_detector import PeerLiveness, PeerState
from ebla.group0.commands import CommandAnswer
from ebla.group0.keys import PURGE_KEY, PurgeState
from ebla.group0.members import Member
from ebla.group0.store import Group0Store, sender_refusal
from ebla.model.errors import Refused, Unavailable
from ebla.model.identity import HostId
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import Condition, KeyMissing, KeyUnchanged, PutKey, Revision, Transaction
from ebla.ports.clock import Clock
from ebla.wire.settings_messages import HostProblem, SettingsHeader


class Liveness(Protocol):
    def peers(self) -> tuple[PeerLiveness, ...]: ...

    def clocks(self) -> Mapping[HostId, PeerClock]: ...


class StoredPurgeState:
    """`purge/state`, as applied on this node, and the condition that it did not change since."""

    def __init__(self, store: Group0Store) -> None:
        entry = store.get(PURGE_KEY)
        self._stored = StoredValue(PurgeState()) if entry is None else decode_stored(PurgeState, entry.value)
        self.state = self._stored.value
        self.revision: Revision | None = None if entry is None else entry.revision

    @property
    def is_unfinished(self) -> bool:
        return self.state.tentative_wall_us > self.state.effective_wall_us

    def changed_to(self, state: PurgeState, *conditions: Condition) -> Transaction:
        unchanged = KeyMissing(PURGE_KEY) if self.revision is None else KeyUnchanged(PURGE_KEY, self.revision)
        put = PutKey(PURGE_KEY, encode_stored(self._stored.with_value(state)))
        return Transaction((unchanged, *conditions), (put,))


class SettingsCluster:
    def __init__(self, group0: Group0Node, liveness: Liveness, clock: Clock) -> None:
        self.group0 = group0
        self._liveness = liveness
        self._clock = clock
        self.host = group0.config.member.host

    # ---- members

    @property
    def store(self) -> Group0Store:
        """Raises `Unavailable` while the node is in no cluster."""
        return self.group0.running.store

    def members(self) -> tuple[Member, ...]:
        """The present ones; none while the node is in no cluster."""
        return self.store.present_members().members if self.group0.is_running else ()

    async def wait_members_known(self, wait_ms: int) -> None:
        """Raises `Unavailable`."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self.group0.members_known.wait()
        except TimeoutError:
            raise Unavailable(
                f"this node did not read its state of group 0 within {wait_ms} ms", advice="try again"
            ) from None

    def others(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members() if member.host != self.host)

    def removed(self) -> tuple[HostId, ...]:
        if not self.group0.is_running:
            return ()
        return tuple(sorted(member.host for member in self.store.members.values() if not member.present))

    def find_host(self, text: str) -> HostId:
        """By its id or its address. Raises `Refused`."""
        for member in self.members():
            if text in (str(member.host), member.address.host, str(member.address)):
                return member.host
        raise Refused(f"{text} is no member of this cluster", advice="see: ebla group0 members")

    def address_of(self, host: HostId) -> str:
        member = next((one for one in self.store.members.values() if one.host == host), None)
        return member.address.host if member is not None and member.listens else str(host)

    @property
    def leads(self) -> bool:
        return self.group0.leads

    # ---- liveness

    def up_hosts(self) -> tuple[HostId, ...]:
        """The other members that are up."""
        up = {peer.host for peer in self._liveness.peers() if peer.state is PeerState.UP}
        return tuple(member.host for member in self.others() if member.host in up)

    def problem(self, host: HostId, cause: str) -> HostProblem:
        """Why something failed at a host: that it is down, if it is."""
        peer = next((one for one in self._liveness.peers() if one.host == host), None)
        is_up = host == self.host or (peer is not None and peer.state is PeerState.UP)
        if not is_up:
            down_ms = None if peer is None else self._clock.boot_ms() - peer.since_ms
            cause = "down, never heard from" if down_ms is None else f"down for {duration_text(down_ms)}"
        return HostProblem(host=host, address=self.address_of(host), cause=cause, is_up=is_up)

    def clock_offsets_ms(self) -> dict[HostId, int]:
        return {host: clock.offset_ms for host, clock in self._liveness.clocks().items()}

    # ---- the membership fence

    def header(self, watermark_us: int) -> SettingsHeader:
        return SettingsHeader(host=self.host, members_revision=self.store.members_revision, watermark_us=watermark_us)

    def check_sender(self, header: SettingsHeader) -> None:
        """Raises `Refused` if its messages must not be merged."""
        refusal = sender_refusal(self.store, header.host, header.members_revision)
        if refusal:
            raise Refused(refusal)

    # ---- group 0

    def purge_state(self) -> StoredPurgeState:
        return StoredPurgeState(self.store)

    async def read_barrier(self, deadline_ms: int) -> None:
        await self.group0.running.client.read_barrier(deadline_ms)

    async def transact(
        self, transaction: Transaction, deadline_ms: int, before_offer: BeforeOffer = None
    ) -> CommandAnswer:
        return await self.group0.running.client.transact(transaction, deadline_ms, before_offer)

    def watch_group0(self, prefix: str, on_change: Callable[[], None]) -> None:
        self.group0.running.machine.watch(lambda _step: on_change(), prefix)

    def leader(self) -> HostId:
        leader = self.group0.running.leader_host()
        if leader is None:
            raise Unavailable("no leader of group 0 is known", advice="try again once a majority of nodes is up")
        return leader


def duration_text(duration_ms: int) -> str:
    seconds = duration_ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"

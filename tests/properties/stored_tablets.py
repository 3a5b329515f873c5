"""Which shards hold rows of which tablet, if every view of the topology that may still be in use keeps writing.

A view may be in use as long as the fence has not passed it. So this is the worst that any mix of slow and fast routers
can do, and INV-TABL-1 must hold of it.
"""

from ebla.model.identity import Replica, TableId
from ebla.topology.apply.tablets import given_up_hosts
from ebla.topology.invariants import InvariantViolation, StoredTablet, stray_tablets
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import TabletStage
from ebla.topology.tablet_map import TabletMap
from ebla.topology.tablet_stages import Selector, leaving_replicas, pending_replicas, stage_row

Held = dict[tuple[TableId, int], frozenset[Replica]]


def writers(snapshot: Snapshot) -> Held:
    """Where this view writes each tablet, on either shard of a host."""
    found: Held = {}
    for table, tablets in snapshot.tablets.items():
        for number in range(tablets.tablet_count):
            found[table, number] = frozenset(_written(tablets, number))
    return found


def _written(tablets: TabletMap, number: int) -> tuple[Replica, ...]:
    transition = tablets.transition(number)
    if transition is None:
        return tablets.replicas(number)
    match stage_row(transition).writes:
        case Selector.PREVIOUS:
            return tablets.replicas(number)
        case Selector.NEXT:
            return transition.new_replicas
        case Selector.BOTH:
            return tablets.all_replicas(number)


class StoredTablets:
    def __init__(self) -> None:
        self._held: Held = {}
        self._views: list[Snapshot] = []

    def follow(self, before: Snapshot, after: Snapshot) -> None:
        """One commit: what its stage did, then everything that may be written by views still in use."""
        self._views = [view for view in self._views if view.version >= after.fence]
        self._clean(before, after)
        self._resize(before, after)
        self._held = {key: held for key, held in self._held.items() if key[0] in after.tablets}
        self._views.append(after)
        for view in self._views:
            for (table, number), replicas in writers(view).items():
                if self._same_count(view, after, table):
                    self._held[table, number] = self._held.get((table, number), frozenset()) | replicas
        self._sweep_returned(before, after)

    def violations(self, snapshot: Snapshot) -> list[InvariantViolation]:
        gone = given_up_hosts(snapshot)
        held = [
            StoredTablet(table, number, replica)
            for (table, number), replicas in self._held.items()
            for replica in sorted(replicas)
            if replica.host not in gone
        ]
        return list(stray_tablets(snapshot, held))

    @staticmethod
    def _same_count(view: Snapshot, after: Snapshot, table: TableId) -> bool:
        return table in after.tablets and view.tablets[table].tablet_count == after.tablets[table].tablet_count

    def _clean(self, before: Snapshot, after: Snapshot) -> None:
        """The actions of `cleanup` and `cleanup_target`, done before the commit that leaves them."""
        gone = given_up_hosts(before)
        for table, tablets in before.tablets.items():
            for number, transition in tablets.transitions():
                now = after.tablets[table].transition(number) if table in after.tablets else None
                replicas, new = tablets.replicas(number), transition.new_replicas
                cleaned: tuple[Replica, ...] = ()
                if transition.stage is TabletStage.CLEANUP and now is not None and now.stage is not transition.stage:
                    cleaned = leaving_replicas(replicas, new)
                if (
                    transition.stage is TabletStage.CLEANUP_TARGET
                    and now is not None
                    and now.stage is not transition.stage
                ):
                    cleaned = pending_replicas(replicas, new)
                there = frozenset(replica for replica in cleaned if replica.host not in gone)
                self._held[table, number] = self._held.get((table, number), frozenset()) - there

    def _resize(self, before: Snapshot, after: Snapshot) -> None:
        """Rows go where their token goes. Views of the old count write to the same replicas, by the promise that no
        tablet is in transition then, so they add nothing."""
        for table, new in after.tablets.items():
            old = before.tablets.get(table)
            if old is None or old.tablet_count == new.tablet_count:
                continue
            held = {number: self._held.pop((table, number), frozenset()) for number in range(old.tablet_count)}
            for number in range(new.tablet_count):
                if new.tablet_count > old.tablet_count:
                    self._held[table, number] = held[number // 2]
                else:
                    self._held[table, number] = held[2 * number] | held[2 * number + 1]

    def _sweep_returned(self, before: Snapshot, after: Snapshot) -> None:
        """A node that was given up and is waited for again first drops what it is no longer a replica of."""
        gone = given_up_hosts(after)
        back = [host for host in sorted(given_up_hosts(before)) if host not in gone]
        for (table, number), held in list(self._held.items()):
            replicas = after.tablets[table].all_replicas(number)
            stray = frozenset(each for each in held if each.host in back and each not in replicas)
            self._held[table, number] = held - stray

"""What becomes of two versions of one setting.

`docs/settings.md` has the table of the rows and its reasons. The rule is commutative and idempotent, and replicas that
exchange what they have become equal. It is not associative: the order of exchanges may decide which value that is.
"""

from typing import NamedTuple

from ebla.settings_store.entry import Entry, Stamp, qualifies


class Merged(NamedTuple):
    entry: Entry | None
    row: int
    """Of the decision table; 0 if the remote entry was filtered out or one side is absent."""
    pushed: bool = False
    """The result is new to both sides: send it to the others."""


NEVER_PURGED = -1
"""As `purged_until`: filters nothing."""


def merge(local: Entry | None, remote: Entry | None, purged_until: int) -> Merged:
    """`purged_until`: tombstones up to then are erased on this node, and a slower node must not bring them back."""
    if remote is None or qualifies(remote, purged_until):
        return Merged(local, 0)
    if local is None:
        return Merged(remote, 0)
    if local == remote:
        return Merged(local, 1)
    if local.purged_us != remote.purged_us:
        return Merged(max(local, remote, key=_recency), 8)
    local_descends = descends(local.clock, remote.clock)
    remote_descends = descends(remote.clock, local.clock)
    if remote_descends and not local_descends:
        return Merged(remote, 2)
    if local_descends and not remote_descends:
        return Merged(local, 3)
    return _resolve(local, remote)


def _resolve(local: Entry, remote: Entry) -> Merged:
    """Neither includes the other: a conflict."""
    if local.value == remote.value:
        smaller, larger = sorted((local, remote), key=_term)
        return _joined(4, larger, smaller)
    if local.value is None or remote.value is None:
        # The clock stays as it is: the live value was written without knowledge of the deletion.
        return Merged(remote if local.value is None else local, 5)
    local_us, remote_us = local.timestamp_us, remote.timestamp_us
    if local_us != remote_us:
        newer, older = (local, remote) if local_us > remote_us else (remote, local)
        return _joined(6, newer, older)
    smaller, larger = sorted((local, remote), key=_term)
    return _joined(7, smaller, larger)


def _joined(row: int, winner: Entry, loser: Entry) -> Merged:
    return Merged(Entry(winner.value, join_clocks(winner.clock, loser.clock), winner.purged_us), row, pushed=True)


def _recency(entry: Entry) -> tuple[int, int]:
    return entry.timestamp_us, entry.purged_us


def _term(entry: Entry) -> tuple[list[tuple[int, int, int]], bytes]:
    """Actors by their bytes, which is the order of their integers."""
    return [(stamp.actor.int, stamp.counter, stamp.wall_us) for stamp in entry.clock], entry.value or b""


def descends(clock: tuple[Stamp, ...], other: tuple[Stamp, ...]) -> bool:
    """Whether every actor of `other` is in `clock` with at least that counter."""
    stamps = iter(clock)  # both are sorted by actor
    for wanted in other:
        actor = wanted.actor.int
        for stamp in stamps:
            if stamp.actor.int >= actor:
                break
        else:
            return False
        if stamp.actor.int != actor or stamp.counter < wanted.counter:
            return False
    return True


def join_clocks(winner: tuple[Stamp, ...], loser: tuple[Stamp, ...]) -> tuple[Stamp, ...]:
    """Of each actor the stamp with the larger counter; if the counters are equal, that of the winner."""
    stamps = {stamp.actor.int: stamp for stamp in winner}
    for stamp in loser:
        known = stamps.get(stamp.actor.int)
        if known is None or known.counter < stamp.counter:
            stamps[stamp.actor.int] = stamp
    return tuple(stamps[actor] for actor in sorted(stamps))

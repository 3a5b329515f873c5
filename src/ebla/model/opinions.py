"""What a voter believes of another node, by its failure detector. Durations, never clock times: clocks differ."""

import enum

import msgspec

from ebla.model.identity import HostId


class OpinionState(enum.StrEnum):
    UP = "up"
    DOWN = "down"
    NONE = "none"
    """The voter has not watched the host for long enough. It counts as up."""


class Opinion(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    voter: HostId
    host: HostId
    state: OpinionState
    for_ms: int = 0
    """Since when, seen from the moment of the answer."""

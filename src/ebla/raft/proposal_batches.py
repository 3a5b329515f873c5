"""How the proposals of one turn go to the core. Pure."""

from collections.abc import Iterator, Sequence

from ebla.raft.events import Propose
from ebla.raft.messages import EntryKind

Proposal = tuple[bytes, EntryKind]


def batch_proposals(proposals: Sequence[Proposal], bytes_max: int) -> Iterator[Propose]:
    """Neighbours go together, up to what one message may hold; a membership change always stands alone."""
    if len(proposals) == 1:
        ((payload, kind),) = proposals
        yield Propose((payload,), kind)
        return
    together: list[bytes] = []
    size = 0
    for payload, kind in proposals:
        is_command = kind is EntryKind.COMMAND
        if together and (not is_command or size + len(payload) > bytes_max):
            yield Propose(tuple(together), EntryKind.COMMAND)
            together, size = [], 0
        if is_command:
            together.append(payload)
            size += len(payload)
        else:
            yield Propose((payload,), kind)
    if together:
        yield Propose(tuple(together), EntryKind.COMMAND)

"""A leader that loses its vote by an operation hands over first: it would stop leading before the last step."""

from ebla.control.group0.node import Group0Node
from ebla.control.operations.runner import OperationDeps
from ebla.group0.members import MemberRole
from ebla.group0.operations import Operation, OperationCode, OperationFailed, OperationKind, read_record
from ebla.model.errors import EblaError
from ebla.model.identity import HostId

HAND_OVER_MS = 10_000


def successors(group0: Group0Node, operation: Operation | None = None) -> tuple[HostId, ...]:
    """The voters that keep their vote, if this node loses its own by the operation, or by the unfinished one, which
    every run repairs first. None: it keeps its vote, or it is the last one, which the operation itself refuses.

    A new `exclude` is not among them: its check refuses the leader, and leadership should not move for a refusal."""
    store = group0.running.store
    found = read_record(store)
    losing = set() if found is None else {one.host for one in found.value.members if one.role is not MemberRole.VOTER}
    if operation is not None and operation.kind is OperationKind.REMOVE:
        losing.update(operation.hosts)
    elif operation is not None:
        roles = zip(operation.hosts, operation.roles, strict=False)
        losing.update(host for host, role in roles if role is MemberRole.LEARNER)
    if group0.config.member.host not in losing:
        return ()
    voters = (one.host for one in store.members.values() if one.role is MemberRole.VOTER)
    return tuple(host for host in voters if host not in losing)


async def hand_over(deps: OperationDeps, operation: Operation | None = None) -> None:
    """Does nothing unless there are successors. Raises `OperationFailed` otherwise: the next leader continues."""
    candidates = successors(deps.group0, operation)
    if not candidates:
        return
    operation_id = None if operation is None else operation.id
    try:
        await deps.group0.running.transfer_leadership(candidates, HAND_OVER_MS)
    except EblaError as error:
        own = deps.group0.config.member.host
        cause = f"leadership could not be transferred away from host {own} first: {error.message}"
        deps.report("operation.failed", {"operation": str(operation_id), "kind": "hand over", "cause": cause})
        raise OperationFailed(
            cause,
            advice="see `ebla group0 members`, and try again",
            code=OperationCode.UNAVAILABLE,
            operation=operation_id,
        ) from error
    raise OperationFailed(
        "another node leads now", advice="try again", code=OperationCode.NOT_LEADER, operation=operation_id
    )

"""Commands about the cluster as a whole: fence, features, ignored and excluded nodes, CDC generations, the upgrade."""

import msgspec

from ebla.model.identity import HostId
from ebla.topology import keys
from ebla.topology.apply.draft import CommandHandlers, TopologyDraft
from ebla.topology.apply.nodes import commit_generation_data, require_complete
from ebla.topology.cdc_generations import CDC_PARTS_MAX
from ebla.topology.commands import (
    BuildCoordinatorState,
    DropCdcGenerations,
    EnableFeatures,
    ExcludeHosts,
    FencePredecessor,
    IncludeHost,
    MarkCdcPublished,
    RaiseFence,
    RefreshNode,
    ResetFailoverCount,
    SetBalancing,
    SetIgnoredNodes,
    StartCdcCommit,
    StartUpgrade,
    WriteCdcPart,
)
from ebla.topology.features import features_to_enable, missing_to_start
from ebla.topology.keys import Row
from ebla.topology.snapshot import CdcGeneration, GenerationId
from ebla.topology.states import GlobalRequestKind, NodeState, RequestOutcome, TransitionState, UpgradeState


def _fence_predecessor(draft: TopologyDraft, _command: FencePredecessor) -> None:
    draft.require(bool(draft.base.nodes), "the first node has not created the topology yet")
    draft.set_state()


def _raise_fence(draft: TopologyDraft, command: RaiseFence) -> None:
    draft.set_state()
    draft.raise_fence(command.version)


def _set_balancing(draft: TopologyDraft, command: SetBalancing) -> None:
    draft.set_state(balancing_enabled=command.enabled)


def _set_ignored(draft: TopologyDraft, command: SetIgnoredNodes) -> None:
    for host in command.hosts:
        _require_in_cluster(draft, host, "ignored")
    incomplete = [node.host for node in draft.base.members() if node.is_incomplete]
    kept = {*command.hosts, *incomplete, *(one.host for one in draft.base.state.exclusions)}
    for host in draft.base.state.ignored_nodes:
        if host not in kept:
            _require_not_ignored_by_others(draft, host)
    draft.step(ignored_nodes=tuple(sorted(kept)))


def _require_in_cluster(draft: TopologyDraft, host: HostId, what: str) -> None:
    node = draft.base.nodes.get(host)
    is_member = node is not None and node.state not in (NodeState.LEFT, NodeState.NONE)
    draft.require(is_member, f"{host} is no member and cannot be {what}")


def _require_not_ignored_by_others(draft: TopologyDraft, host: HostId) -> None:
    """Barriers are about to wait for this host again."""
    draft.require(draft.base.node(host).state is not NodeState.REMOVING, f"{host} is being removed")
    requests = [request for request in draft.base.node_requests.values() if request.is_open]
    needed = any(host in request.excludes for request in requests)
    draft.require(not needed, f"{host} is excluded by a request that is not done")
    running = draft.base.node_in_transition()
    abort = "" if running is None or running.request is None else f" or abort it: ebla topology abort {running.request}"
    draft.require(running is None, f"{draft.base.running_operation} is not done yet: wait for it{abort}")
    # Stages did not wait for it. If barriers waited for it again in the middle of a transition, it would keep what
    # `cleanup` should have removed: during the transition it counts as a replica, and nothing cleans up later.
    moving = draft.base.in_tablet_transition(host)
    draft.require(not moving, f"{host} is part of moves under way; wait until they have ended")


def _exclude(draft: TopologyDraft, command: ExcludeHosts) -> None:
    """A host that is excluded already is refused, so that a command sent twice does not count twice."""
    state = draft.base.state
    hosts = [one.host for one in command.exclusions]
    draft.require(bool(hosts), "no host is named")
    draft.require(len(set(hosts)) == len(hosts), "a host is named twice")
    for host in hosts:
        _require_in_cluster(draft, host, "excluded")
        draft.require(draft.base.exclusion_of(host) is None, f"{host} is excluded already")
    draft.step(
        ignored_nodes=tuple(sorted({*state.ignored_nodes, *hosts})),
        exclusions=tuple(sorted((*state.exclusions, *command.exclusions), key=lambda one: one.host)),
        failover_count=state.failover_count + sum(one.is_automatic for one in command.exclusions),
    )


def _include(draft: TopologyDraft, command: IncludeHost) -> None:
    state = draft.base.state
    draft.require(command.host in draft.base.excluded_hosts, f"{command.host} is not excluded")
    # INV-NODE-23: quorums rely on rows that it never got.
    draft.require(
        not draft.base.node(command.host).is_incomplete,
        f"{command.host} is incomplete: it became a replica while it was excluded and lacks rows; remove it (ebla "
        f"removenode {command.host}) or replace it (ebla add-node --replace {command.host})",
    )
    _require_not_ignored_by_others(draft, command.host)
    draft.step(
        ignored_nodes=tuple(host for host in state.ignored_nodes if host != command.host),
        exclusions=tuple(one for one in state.exclusions if one.host != command.host),
    )


def _reset_failover_count(draft: TopologyDraft, _command: ResetFailoverCount) -> None:
    draft.set_state(failover_count=0)


def _refresh_node(draft: TopologyDraft, command: RefreshNode) -> None:
    node = draft.member(command.host)
    draft.require(node.state is not NodeState.LEFT, f"{node.host} left this cluster and cannot come back")
    missing = missing_to_start(draft.base, command.supported_features)
    draft.require(not missing, f"this release lacks features the cluster uses or is about to: {', '.join(missing)}")
    if command.shard_count < node.shard_count:
        stranded = any(
            replica.host == node.host and replica.shard >= command.shard_count
            for tablets in draft.base.tablets.values()
            for number in tablets.tablets_on(node.host)
            for replica in tablets.all_replicas(number)
        )
        draft.require(not stranded, f"tablets live on shards of {node.host} that would be gone; drain it first")
    draft.put_node(
        msgspec.structs.replace(
            node,
            release_version=command.release_version,
            address=command.address,
            shard_count=command.shard_count,
            ignore_msb=command.ignore_msb,
            supported_features=tuple(sorted(command.supported_features)),
        )
    )
    draft.step()


def _enable_features(draft: TopologyDraft, command: EnableFeatures) -> None:
    ready = features_to_enable(draft.base)
    early = [feature for feature in command.features if feature not in ready]
    draft.require(not early, f"not every node supports {', '.join(early)}")
    draft.require_idle("features are enabled")
    draft.raise_fence(command.fence)
    draft.require_barrier(draft.base.version, "support by every node")
    enabled = sorted({*draft.base.state.enabled_features, *command.features})
    draft.step(enabled_features=tuple(enabled))


def _start_cdc_commit(draft: TopologyDraft, command: StartCdcCommit) -> None:
    request = draft.next_global_request(command.request)
    draft.require(request.kind is GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS, f"the request is a {request.kind}")
    draft.require(request.outcome is RequestOutcome.PENDING, "the request is already running")
    draft.require(draft.base.transition is None, f"the topology is in {draft.base.transition}")
    draft.require(draft.base.node_in_transition() is None, "a node is in transition")
    require_complete(draft, command.generation)
    running = msgspec.structs.replace(request, outcome=RequestOutcome.RUNNING, generation=command.generation)
    draft.put_all({keys.request_key(request.id): running})
    draft.step(transition=TransitionState.COMMIT_CDC_GENERATION, new_cdc_generation=command.generation)


def _write_cdc_part(draft: TopologyDraft, command: WriteCdcPart) -> None:
    draft.require(0 <= command.number < command.part_count <= CDC_PARTS_MAX, "no such part")
    head = draft.base.cdc_generations.get(command.generation)
    rows: dict[str, Row | None] = {keys.part_key(command.generation, command.number): command.part}
    if head is None:
        rows[keys.generation_key(command.generation)] = CdcGeneration(
            id=command.generation, part_count=command.part_count
        )
    else:
        draft.require(head.timestamp_ms is None, "a committed generation does not change")
        draft.require(head.part_count == command.part_count, f"the generation has {head.part_count} parts")
    draft.require_unchanged(keys.generation_key(command.generation))
    draft.put_all(rows)


def _mark_published(draft: TopologyDraft, command: MarkCdcPublished) -> None:
    head = _generation(draft, command.generation)
    draft.require(head.timestamp_ms is not None, "the generation is not committed yet")
    older = [
        each.id
        for each in draft.base.cdc_generations.values()
        if each.timestamp_ms is not None and not each.published and each.timestamp_ms < (head.timestamp_ms or 0)
    ]
    draft.require(not older, f"generation {older[0] if older else ''} is older and comes first")
    draft.require_unchanged(keys.generation_key(head.id))
    draft.put_all({keys.generation_key(head.id): msgspec.structs.replace(head, published=True)})


def _generation(draft: TopologyDraft, generation: GenerationId) -> CdcGeneration:
    return draft.found(draft.base.cdc_generations.get(generation), f"there is no CDC generation {generation}")


def _drop_generations(draft: TopologyDraft, command: DropCdcGenerations) -> None:
    newest = max((each.timestamp_ms or 0 for each in draft.base.cdc_generations.values()), default=0)
    rows: dict[str, Row | None] = {}
    for generation in command.generations:
        head = _generation(draft, generation)
        draft.require(generation != draft.base.state.new_cdc_generation, "the generation is about to be committed")
        draft.require(head.timestamp_ms is None or head.published, "the generation is not published yet")
        draft.require(head.timestamp_ms is None or head.timestamp_ms < newest, "the newest generation is in use")
        rows[keys.generation_key(generation)] = None
        rows.update({keys.part_key(generation, number): None for number in range(head.part_count)})
    draft.put_all(rows)
    draft.set_state()


def _start_upgrade(draft: TopologyDraft, _command: StartUpgrade) -> None:
    ready = draft.base.state.upgrade is UpgradeState.NOT_UPGRADED
    draft.require(ready, f"the upgrade is {draft.base.state.upgrade}")
    draft.set_state(upgrade=UpgradeState.BUILD_COORDINATOR_STATE)


def _build_coordinator_state(draft: TopologyDraft, command: BuildCoordinatorState) -> None:
    building = draft.base.state.upgrade is UpgradeState.BUILD_COORDINATOR_STATE
    draft.require(building, f"the upgrade is {draft.base.state.upgrade}")
    unsettled = [node for node in command.nodes if node.state not in (NodeState.NORMAL, NodeState.LEFT)]
    draft.require(
        not unsettled, f"{unsettled[0].host if unsettled else ''} is on the move; let it end before the upgrade"
    )
    # INV-NODE-1: group 0 may know nodes, from before a recovery, that the settings have lost.
    known = draft.base.nodes
    back = [node.host for node in command.nodes if node.host in known and known[node.host].state is NodeState.LEFT]
    back = [node.host for node in command.nodes if node.host in back and node.state is not NodeState.LEFT]
    draft.require(not back, f"{back[0] if back else ''} left this cluster and cannot come back")
    on_tablets = [keyspace.name for keyspace in command.keyspaces if keyspace.on_tablets]
    draft.require(not on_tablets, f"keyspace {on_tablets[0] if on_tablets else ''} is on tablets, which need group 0")
    tokens = [token for node in command.nodes for token in node.tokens]
    draft.require(len(set(tokens)) == len(tokens), "two nodes own one token; mend that before the upgrade")
    rows: dict[str, Row | None] = {}
    rows.update({keys.node_key(node.host): msgspec.structs.replace(node, request=None) for node in command.nodes})
    rows.update({keys.keyspace_key(keyspace.name): keyspace for keyspace in command.keyspaces})
    rows.update({keys.table_key(table.id): table for table in command.tables})
    draft.put_all(rows)
    commit_generation_data(draft, command.generation, command.timestamp_ms)
    draft.step(upgrade=UpgradeState.DONE)


CLUSTER_COMMANDS: CommandHandlers = {
    FencePredecessor: _fence_predecessor,
    RaiseFence: _raise_fence,
    SetIgnoredNodes: _set_ignored,
    ExcludeHosts: _exclude,
    IncludeHost: _include,
    ResetFailoverCount: _reset_failover_count,
    RefreshNode: _refresh_node,
    EnableFeatures: _enable_features,
    SetBalancing: _set_balancing,
    StartCdcCommit: _start_cdc_commit,
    WriteCdcPart: _write_cdc_part,
    MarkCdcPublished: _mark_published,
    DropCdcGenerations: _drop_generations,
    StartUpgrade: _start_upgrade,
    BuildCoordinatorState: _build_coordinator_state,
}

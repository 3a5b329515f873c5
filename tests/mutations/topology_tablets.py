"""Bugs in stages, replica sets, shards, sessions, streams and placement."""

from tests.mutations.framework import Mutation, PytestCheck

QUORUMS = PytestCheck("tests/properties/test_quorums_meet.py")
STAGES = PytestCheck("tests/unit/topology/test_tablet_stages.py")
SHARDER = PytestCheck("tests/unit/topology/test_sharder.py")
SETS = PytestCheck("tests/unit/topology/test_replica_sets.py")
STRATEGIES = PytestCheck("tests/unit/topology/test_replication_strategies.py")
SESSIONS = PytestCheck("tests/unit/topology/test_sessions.py")
ZOMBIE = PytestCheck("tests/scenarios/test_zombie_stream.py")
STREAMS = PytestCheck("tests/unit/topology/test_cdc_generations.py")
RESIZE = PytestCheck("tests/unit/topology/test_resize.py")
PLACEMENT = PytestCheck("tests/unit/balancer/test_placement.py")

STAGE_MODULE = "ebla.topology.tablet_stages"

MUTATIONS = (
    Mutation(
        name="tablets-pending-not-counted",
        module="ebla.topology.replica_sets",
        find="return answers_needed(level, replicas.counts(targets.natural), local_datacenter, pending)",
        replace="return answers_needed(level, replicas.counts(targets.natural), local_datacenter, None and pending)",
        check=QUORUMS,
        why="a write acknowledged by an old and the pending replica is missed by a reader of the other two",
    ),
    Mutation(
        name="tablets-pending-not-counted-in-quorum",
        module="ebla.model.consistency",
        find="_share(rule, counts.total) + sum(added.values())",
        replace="max(_share(rule, counts.total), sum(added.values()))",
        check=QUORUMS,
        why="a pending replica takes the place of a natural one in the quorum",
    ),
    Mutation(
        name="tablets-reads-switched-early",
        module=STAGE_MODULE,
        find="stage=TabletStage.STREAMING,\n        reads=Selector.PREVIOUS,",
        replace="stage=TabletStage.STREAMING,\n        reads=Selector.NEXT,",
        check=QUORUMS,
        why="readers ask the pending replica before it has what was written earlier",
    ),
    Mutation(
        name="tablets-writes-switched-early",
        module=STAGE_MODULE,
        find="reads=Selector.NEXT,\n        writes=Selector.BOTH,",
        replace="reads=Selector.NEXT,\n        writes=Selector.NEXT,",
        check=QUORUMS,
        why="a reader one stage behind asks old replicas that newer writers skip",
    ),
    Mutation(
        name="tablets-direct-way-back",
        module=STAGE_MODULE,
        find="back=TabletStage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,",
        replace="back=TabletStage.CLEANUP_TARGET,",
        check=QUORUMS,
        why="the seed's edge: a writer one stage ahead and a reader one behind share no replica",
    ),
    Mutation(
        name="tablets-no-barrier-before-streaming",
        module=STAGE_MODULE,
        find="writes=Selector.BOTH,\n        barrier=True,\n        next=TabletStage.STREAMING,",
        replace="writes=Selector.BOTH,\n        barrier=False,\n        next=TabletStage.STREAMING,",
        check=QUORUMS,
        why="a router that still writes to the old set alone is missed by the copy",
    ),
    Mutation(
        name="tablets-no-barrier-before-target-is-cleaned",
        module=STAGE_MODULE,
        find="barrier=True,\n        action=StageAction.CLEAN_PENDING,",
        replace="barrier=False,\n        action=StageAction.CLEAN_PENDING,",
        check=QUORUMS,
        why="a late write lands on the cleaned replica and stays there (INV-TABL-1)",
    ),
    Mutation(
        name="tablets-cleanup-without-session",
        module=STAGE_MODULE,
        find="action=StageAction.CLEAN_LEAVING,\n        session=True,",
        replace="action=StageAction.CLEAN_LEAVING,\n        session=False,",
        check=STAGES,
        why="a clean-up that comes late empties a replica that has come back",
    ),
    Mutation(
        name="tablets-choice-turned-round",
        module=STAGE_MODULE,
        find="lost_after > lost_before",
        replace="lost_after < lost_before",
        check=STAGES,
        why="a migration goes on to the set with more dead replicas",
    ),
    Mutation(
        name="tablets-rebuild-from-one-source",
        module=STAGE_MODULE,
        find="tuple(replica for replica in staying if replica.host not in given_up)",
        replace="tuple(replica for replica in staying if replica.host not in given_up)[-1:]",
        check=QUORUMS,
        why="a write on the dead replica and one more is on one of three afterwards",
    ),
    Mutation(
        name="tablets-session-left-open",
        module="ebla.topology.apply_tablets",
        find="rows[keys.session_key(transition.session)] = None",
        replace="pass",
        check=ZOMBIE,
        why="a stream of a failed migration brings a deleted row back",
    ),
    Mutation(
        name="vnodes-left-ring-still-written",
        module="ebla.topology.vnode_ring",
        find="(NodeState.DECOMMISSIONING, TransitionState.LEFT_TOKEN_RING): _NEXT,",
        replace="(NodeState.DECOMMISSIONING, TransitionState.LEFT_TOKEN_RING): _PREVIOUS,",
        check=QUORUMS,
        why="writes are acknowledged by a node that is about to go, and readers ask the new owners",
    ),
    Mutation(
        name="vnodes-pending-not-written",
        module="ebla.topology.vnode_ring",
        find="(NodeState.BOOTSTRAPPING, TransitionState.WRITE_BOTH_READ_OLD): _BOTH_READ_OLD,",
        replace="(NodeState.BOOTSTRAPPING, TransitionState.WRITE_BOTH_READ_OLD): _PREVIOUS,",
        check=QUORUMS,
        why="the joining node misses what is written while it streams",
    ),
    Mutation(
        name="vnodes-read-new-too-early",
        module="ebla.topology.vnode_ring",
        find="_BOTH_READ_OLD = RingUse(Selector.PREVIOUS, Selector.BOTH)",
        replace="_BOTH_READ_OLD = RingUse(Selector.NEXT, Selector.BOTH)",
        check=QUORUMS,
        why="readers ask a node that is still being filled",
    ),
    Mutation(
        name="vnodes-stream-from-a-bystander",
        module="ebla.topology.vnode_streams",
        find="if losing and not any(host in given_up for host in losing):",
        replace="if losing and any(host in given_up for host in losing):",
        check=QUORUMS,
        why="the new owner is filled from a replica that may lack an acknowledged write",
    ),
    Mutation(
        name="sharder-writes-one-shard-of-two",
        module="ebla.topology.sharder",
        find="return (new, old)",
        replace="return (new,)",
        check=QUORUMS,
        why="inside a node a read of the old shard misses what was acknowledged",
    ),
    Mutation(
        name="sharder-follows-the-stage-between-nodes",
        module="ebla.topology.sharder",
        find="return _first(new, old)\n        return _first(old, new)",
        replace="return _first(new, old)\n"
        "        return _first(new, None) if stage_row(transition).reads is Selector.NEXT else _first(old, new)",
        check=SHARDER,
        why="a router one stage behind reads the leaving replica at a shard that does not have it",
    ),
    Mutation(
        name="sharder-forgets-ignored-bits",
        module="ebla.topology.static_sharding",
        find="((token - TOKEN_MIN) << ignore_msb) & (RING_TOKENS - 1)",
        replace="((token - TOKEN_MIN) << min(ignore_msb, 0)) & (RING_TOKENS - 1)",
        check=SHARDER,
        why="drivers send every request to the wrong shard",
    ),
    Mutation(
        name="replicas-left-node-by-address",
        module="ebla.topology.replica_sets",
        find="return tuple(node.address for node in nodes if node.state is not NodeState.LEFT)",
        replace="return tuple(node.address for node in nodes if node.state is not NodeState.NONE)",
        check=SETS,
        why="requests go to an address that may belong to somebody else by now",
    ),
    Mutation(
        name="vnodes-racks-ignored",
        module="ebla.topology.replication_strategies",
        find="if rack in racks_used and len(racks_used) < part.rack_count:",
        replace="if rack in racks_used and len(racks_used) < 0:",
        check=STRATEGIES,
        why="a rack that fails takes two replicas of three with it, and drivers ask other nodes",
    ),
    Mutation(
        name="sessions-guard-on-a-stale-list",
        module="ebla.topology.sessions",
        find="if not _reached(self.applied, proof.revision):",
        replace="if _reached(proof.revision, self.applied) and False:",
        check=ZOMBIE,
        why="a node that has not seen the close yet lets a zombie in",
    ),
    Mutation(
        name="sessions-barrier-does-not-wait",
        module="ebla.topology.sessions",
        find="return (session for session in sorted(self.guards) if session not in self.listed)",
        replace="return (session for session in sorted(self.guards) if session in self.listed)",
        check=SESSIONS,
        why="clean-up runs beside a stream that is still writing",
    ),
    Mutation(
        name="cdc-generation-by-arrival",
        module="ebla.topology.cdc_generations",
        find="wanted = _held_at(committed, write_us)",
        replace="wanted = _held_at(committed, now_ms * 1000)",
        check=STREAMS,
        why="two routers put one row's changes into streams of two generations",
    ),
    Mutation(
        name="cdc-news-without-delay",
        module="ebla.topology.cdc_generations",
        find="delay_ms = 2 * ring_delay_ms + LEEWAY_MS if ring_delay_ms else 0",
        replace="delay_ms = 0 * ring_delay_ms",
        check=STREAMS,
        why="nodes that have not heard of a generation write to the one before",
    ),
    Mutation(
        name="resize-splits-at-target",
        module="ebla.topology.resize",
        find="split_above_percent: int = 200",
        replace="split_above_percent: int = 101",
        check=RESIZE,
        why="tables split and merge for ever",
    ),
    Mutation(
        name="resize-merge-takes-later-repair",
        module="ebla.topology.resize",
        find="oldest = [min(pair) for pair",
        replace="oldest = [max(pair) for pair",
        check=RESIZE,
        why="tombstones go before the other half was repaired, and deleted rows come back",
    ),
    Mutation(
        name="placement-racks-ignored",
        module="ebla.balancer.placement",
        find="key=lambda name: (used[name], self._racks[name][0][0]),",
        replace="key=lambda name: (used[name] * 0, self._racks[name][0][0]),",
        check=PLACEMENT,
        why="a rack that fails takes two replicas of a tablet with it",
    ),
    Mutation(
        name="placement-capacity-ignored",
        module="ebla.balancer.placement",
        find="return (self.taken + 1) / self.capacity, (self.others",
        replace="return (self.taken + 1) / 1.0, (self.others",
        check=PLACEMENT,
        why="the smallest node is full first",
    ),
)

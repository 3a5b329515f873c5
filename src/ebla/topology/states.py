"""Every enum of the topology. The values are stored, so never rename one."""

import enum


class NodeState(enum.StrEnum):
    """The state of a node. `left` is final: the row is never deleted and the id never returns."""

    NONE = "none"
    BOOTSTRAPPING = "bootstrapping"
    REPLACING = "replacing"
    DECOMMISSIONING = "decommissioning"
    REMOVING = "removing"
    REBUILDING = "rebuilding"
    NORMAL = "normal"
    LEFT = "left"


JOINING_STATES = (NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING)
"""Of a node that is not in the ring yet."""

SERVING_STATES = (NodeState.NORMAL, NodeState.REBUILDING, NodeState.DECOMMISSIONING, NodeState.REMOVING)
"""Of a node in the ring: clients may send it requests."""


class TransitionState(enum.StrEnum):
    """What the topology as a whole is doing; a snapshot without a transition state is at rest."""

    JOIN_GROUP0 = "join_group0"
    COMMIT_CDC_GENERATION = "commit_cdc_generation"
    TABLET_DRAINING = "tablet_draining"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    LEFT_TOKEN_RING = "left_token_ring"  # noqa: S105  # a state, not a secret
    ROLLBACK_TO_NORMAL = "rollback_to_normal"
    TABLET_MIGRATION = "tablet_migration"
    TABLET_SPLIT_FINALIZATION = "tablet_split_finalization"


class TabletStage(enum.StrEnum):
    """The stage of a tablet's transition; each is a promise about the whole cluster once it is committed."""

    ALLOW_WRITE_BOTH_READ_OLD = "allow_write_both_read_old"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    STREAMING = "streaming"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP = "write_both_read_old_fallback_cleanup"
    USE_NEW = "use_new"
    CLEANUP = "cleanup"
    END_MIGRATION = "end_migration"
    CLEANUP_TARGET = "cleanup_target"
    REVERT_MIGRATION = "revert_migration"


class TransitionKind(enum.StrEnum):
    """What a tablet's transition does."""

    MIGRATION = "migration"
    INTRANODE_MIGRATION = "intranode_migration"
    REBUILD = "rebuild"


class ResizeType(enum.StrEnum):
    NONE = "none"
    SPLIT = "split"
    MERGE = "merge"


class NodeRequestKind(enum.StrEnum):
    JOIN = "join"
    REPLACE = "replace"
    LEAVE = "leave"
    REMOVE = "remove"
    REBUILD = "rebuild"


class GlobalRequestKind(enum.StrEnum):
    """Requests that touch no node in particular."""

    CHECK_AND_REPAIR_CDC_STREAMS = "check_and_repair_cdc_streams"
    KEYSPACE_RF_CHANGE = "keyspace_rf_change"


class RequestOutcome(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Refused, cancelled or rolled back; the request's `error` says which and why."""


class EndCause(enum.StrEnum):
    """Why a request failed: the first word of its error."""

    REJECTED = "rejected"
    CANCELLED = "cancelled"
    """It could not run for too long."""
    ABORTED = "aborted"
    ROLLED_BACK = "rolled back"

    def error(self, reason: str) -> str:
        return f"{self}: {reason or 'no reason was given'}"


class SessionKind(enum.StrEnum):
    """The kind of operation that a session belongs to."""

    STAGE = "stage"
    REQUEST = "request"
    BULK_JOB = "bulk_job"


class UpgradeState(enum.StrEnum):
    NOT_UPGRADED = "not_upgraded"
    BUILD_COORDINATOR_STATE = "build_coordinator_state"
    DONE = "done"


class Strategy(enum.StrEnum):
    """How many replicas, and where."""

    NETWORK_TOPOLOGY = "NetworkTopologyStrategy"
    SIMPLE = "SimpleStrategy"

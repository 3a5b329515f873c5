"""How transcripts word what a core does."""

import json
from collections.abc import Sequence

from tests.scenarios.raft_harness.parcels import Parcel, StorageAppend, StorageApply

from ebla.raft.effects import Effects
from ebla.raft.events import ApplyCompleted, WriteCompleted
from ebla.raft.membership import MemberChangeKind, MembershipRule, change_of
from ebla.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    LeaderTransferRequest,
    Membership,
    Message,
    PeerId,
    PreVoteRequest,
    PreVoteResponse,
    Proposal,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ebla.raft.progress import PeerProgress, ReplicationMode
from ebla.raft.quorum import VoteResult
from ebla.raft.roles import Candidate, Follower, Leader, PreCandidate, Role

ROLE_NAMES: dict[type[Role], str] = {
    Follower: "StateFollower",
    PreCandidate: "StatePreCandidate",
    Candidate: "StateCandidate",
    Leader: "StateLeader",
}

MESSAGE_NAMES: dict[type, str] = {
    VoteRequest: "MsgVote",
    VoteResponse: "MsgVoteResp",
    PreVoteRequest: "MsgPreVote",
    PreVoteResponse: "MsgPreVoteResp",
    Append: "MsgApp",
    AppendResponse: "MsgAppResp",
    Heartbeat: "MsgHeartbeat",
    HeartbeatResponse: "MsgHeartbeatResp",
    InstallSnapshot: "MsgSnap",
    TimeoutNow: "MsgTimeoutNow",
    LeaderTransferRequest: "MsgTransferLeader",
    Proposal: "MsgProp",
    ReadIndexRequest: "MsgReadIndex",
    ReadIndexResponse: "MsgReadIndexResp",
    StorageAppend: "MsgStorageAppend",
    StorageApply: "MsgStorageApply",
    WriteCompleted: "MsgStorageAppendResp",
    ApplyCompleted: "MsgStorageApplyResp",
}

_ENTRY_NAMES = {
    EntryKind.COMMAND: "EntryNormal",
    EntryKind.MEMBER: "EntryConfChange",
    EntryKind.MEMBERS: "EntryConfChangeV2",
}
_CHANGE_LETTERS = {
    MemberChangeKind.ADD_VOTER: "v",
    MemberChangeKind.ADD_LEARNER: "l",
    MemberChangeKind.REMOVE: "r",
    MemberChangeKind.UPDATE: "u",
}
CHANGE_KINDS = {letter: kind for kind, letter in _CHANGE_LETTERS.items()}

PACE_NAMES = {
    ReplicationMode.PROBE: "StateProbe",
    ReplicationMode.REPLICATE: "StateReplicate",
    ReplicationMode.SNAPSHOT: "StateSnapshot",
}

VOTE_NAMES = {VoteResult.PENDING: "VotePending", VoteResult.LOST: "VoteLost", VoteResult.WON: "VoteWon"}

RULE_NAMES = {
    MembershipRule.ALREADY_JOINT: "config is already joint",
    MembershipRule.NOT_JOINT: "can't leave a non-joint config",
    MembershipRule.NO_VOTERS_TO_JOIN: "can't make a zero-voter config joint",
    MembershipRule.LAST_VOTER: "removed all voters",
    MembershipRule.JOINT_IN_THE_WAY: "can't apply simple config change in joint config",
    MembershipRule.TOO_MANY_AT_ONCE: "more than one voter changed without entering joint config",
}


def describe_entry(entry: Entry) -> str:
    if entry.kind is EntryKind.COMMAND:
        content = json.dumps(entry.data.decode())
    else:
        content = " ".join(f"{_CHANGE_LETTERS[change.kind]}{change.peer}" for change in change_of(entry).changes)
    return f"{entry.term}/{entry.index} {_ENTRY_NAMES[entry.kind]} {content}".rstrip()


def describe_entries(entries: Sequence[Entry]) -> str:
    return "".join(f"{describe_entry(entry)}\n" for entry in entries)


def _ids(peers: Sequence[PeerId]) -> str:
    return " ".join(str(peer) for peer in peers)


def describe_snapshot(snapshot: SnapshotMeta) -> str:
    m = snapshot.membership
    return (
        f"Index:{snapshot.index} Term:{snapshot.term} ConfState:Voters:[{_ids(m.voters)}] "
        f"VotersOutgoing:[{_ids(m.outgoing)}] Learners:[{_ids(m.learners)}] LearnersNext:[{_ids(m.learners_next)}] "
        f"AutoLeave:{str(m.auto_leave).lower()}"
    )


def describe_membership(membership: Membership) -> str:
    text = f"voters=({_ids(membership.voters)})"
    if membership.outgoing:
        text += f"&&({_ids(membership.outgoing)})"
    if membership.learners:
        text += f" learners=({_ids(membership.learners)})"
    if membership.learners_next:
        text += f" learners_next=({_ids(membership.learners_next)})"
    return text + (" autoleave" if membership.auto_leave else "")


def describe_progress(progress: PeerProgress) -> str:
    text = f"{PACE_NAMES[progress.mode]} match={progress.match} next={progress.next_index}"
    if progress.is_learner:
        text += " learner"
    if progress.is_paused:
        text += " paused"
    if progress.pending_snapshot:
        text += f" pendingSnap={progress.pending_snapshot}"
    if not progress.recently_active:
        text += " inactive"
    if len(progress.inflight):
        text += f" inflight={len(progress.inflight)}"
        text += "[full]" if progress.inflight.is_full else ""
    return text


def describe_hard_state(hard_state: HardState) -> str:
    vote = f" Vote:{hard_state.vote}" if hard_state.vote else ""
    return f"Term:{hard_state.term}{vote} Commit:{hard_state.commit}"


def describe_effects(effects: Effects, parcels: Sequence[Parcel]) -> str:
    write = effects.write
    text = ""
    if effects.status is not None:
        text += f"Lead:{effects.status.leader} State:{ROLE_NAMES[effects.status.role]}\n"
    if write is not None and write.hard_state is not None:
        text += f"HardState {describe_hard_state(write.hard_state)}\n"
    if effects.reads:
        reads = ", ".join(f"{read.index} {json.dumps(read.context.decode())}" for read in effects.reads)
        text += f"ReadStates {reads}\n"
    if write is not None and write.entries:
        text += f"Entries:\n{describe_entries(write.entries)}"
    if write is not None and write.snapshot is not None:
        text += f"Snapshot {describe_snapshot(write.snapshot)}\n"
    if effects.apply is not None:
        text += f"CommittedEntries:\n{describe_entries(effects.apply.entries)}"
    if parcels:
        text += "Messages:\n" + "".join(f"{describe_parcel(parcel)}\n" for parcel in parcels)
    must_sync = str(write is not None and write.must_sync).lower()
    return f"Ready MustSync={must_sync}:\n{text}" if text else "<empty Ready>\n"


def describe_parcel(parcel: Parcel, indent: str = "") -> str:
    body = parcel.content
    term, log_term, index = _coordinates(body)
    text = f"{indent}{parcel.sender}->{parcel.receiver} {MESSAGE_NAMES[type(body)]} Term:{term} Log:{log_term}/{index}"
    text += _details(body)
    text += _entry_list(_entries_of(parcel), indent)
    snapshot = getattr(body, "snapshot", None)
    if snapshot is not None:
        text += f"\n{indent}  Snapshot: {describe_snapshot(snapshot)}"
    if parcel.responses:
        lines = "\n".join(describe_parcel(response, indent + "  ") for response in parcel.responses)
        text += f" Responses:[\n{lines}\n{indent}]"
    return text


def _coordinates(body: object) -> tuple[int, int, int]:
    """Term, log term and index, as far as the message has them."""
    match body:
        case VoteRequest() | PreVoteRequest():
            return body.term, body.last_term, body.last_index
        case Append():
            return body.term, body.prev_term, body.prev_index
        case AppendResponse():
            return body.term, body.hint_term, body.index
        case ReadIndexResponse():
            return body.term, 0, body.index
        case WriteCompleted():
            return body.term, body.last_term, body.last_index
        case StorageAppend():
            return (body.hard_state.term if body.hard_state is not None else 0), 0, 0
        case StorageApply() | ApplyCompleted() | Proposal() | ReadIndexRequest():
            return 0, 0, 0
        case _:
            return getattr(body, "term", 0), 0, 0


def _details(body: object) -> str:
    text = ""
    if getattr(body, "rejected", False) or not getattr(body, "granted", True):
        text += f" Rejected (Hint: {getattr(body, 'hint_index', 0)})"
    hard_state = getattr(body, "hard_state", None)
    commit = hard_state.commit if hard_state is not None else getattr(body, "commit", 0)
    if commit:
        text += f" Commit:{commit}"
    if hard_state is not None and hard_state.vote:
        text += f" Vote:{hard_state.vote}"
    context = getattr(body, "read_context", b"")
    if context:
        text += f" Context:{json.dumps(context.decode())}"
    return text


def _entries_of(parcel: Parcel) -> tuple[Entry, ...]:
    body = parcel.content
    if isinstance(body, Proposal):
        return tuple(Entry(index=0, term=0, data=payload, kind=body.kind) for payload in body.payloads)
    if isinstance(body, Append | StorageAppend | StorageApply):
        return body.entries
    return parcel.entries


def _entry_list(entries: Sequence[Entry], indent: str) -> str:
    if not entries:
        return ""
    if len(entries) == 1:
        return f" Entries:[{describe_entry(entries[0])}]"
    lines = "\n".join(f"{indent}  {describe_entry(entry)}" for entry in entries)
    return f" Entries:[\n{lines}\n{indent}]"


def message_sender(message: Message) -> str:
    # A transfer request is printed with the name of its target.
    return str(message.target if isinstance(message, LeaderTransferRequest) else message.sender)

"""One frozen description of the cluster, its transitions as tables, and who serves what. Pure.

Reading it

    snapshot = rebuild.from_group0(values)               all keys under `topology/`, with their revisions
    snapshot = rebuild.advance(snapshot, feed_entries)    the feed; entries of one transaction together
    snapshot = rebuild.from_settings(entries, version)    before the upgrade, and in recovery (with `base`)
    snapshot.nodes, .tables, .tablets[table], .sessions, .version, .fence, .transition …

Changing it: the only door is `apply`

    match apply.apply(snapshot, command):                 commands.py has every command
        case draft.Applied(after, transaction): …         commit the transaction; if refused by group 0, read again
        case apply.Refused(reason): …                     tell the caller
    applied.at(revision)                                  the snapshot to go on with, once it is committed

Every step is conditional on `topology/state` (draft.py argues it), so a deposed leader commits nothing.

Deciding

    next_step.next_step(snapshot, liveness) -> Step       what the coordinator does now, with `why`
    next_step.side_steps(snapshot, liveness)              beside that: bulk sessions to close, CDC to publish
    requests.objections_to_submit(...)                    why a request should be answered no at once
    node_states.NODE_TABLE, tablet_stages.STAGES          barrier, action, session, next, on failure, promise
    tokens_at_join.choose_tokens(snapshot, node)          tokens of a new node; the same for every leader

Serving

    replica_sets.ReplicaSets(snapshot).of(table)          writing(token), reading(token), ranges_of(host)
    sharder.py, sessions.py, cdc_generations.py, resize.py

A row with a barrier is left by a command that names, as `fence`, the version whose barrier every node acknowledged;
`apply` refuses it otherwise. A node that was ignored and comes back drops the tablets it is no longer a replica of
before it serves: stages went by without waiting for it. It can come back only once no move under way involves it.

For people: `python -m ebla.topology.draw` and `python -m ebla.topology.explain`.
"""

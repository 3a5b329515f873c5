"""One immutable description of the cluster, its transitions as tables, and the replicas of every token. Pure.

Reading

    snapshot_builder.from_group0(values)                  from all keys under `topology/`, with their revisions
    snapshot_builder.advance(snapshot, feed_entries)      from the change feed; entries of one transaction together
    snapshot_builder.from_settings(entries, version)      before the upgrade, and in recovery (with `base`)
    snapshot.nodes, .tables, .tablets[table], .sessions, .version, .fence, .transition …

Changing: only through `apply`

    apply_command(snapshot, command)                      `commands.py` lists every command
        -> the proposed change, with the transaction to commit; if group 0 rejects it, read again
        -> or a refusal with the reason, for the caller

Every step is conditional on `topology/state` (`apply/draft.py` says why), so a deposed leader commits nothing.

Deciding

    next_step.next_step(snapshot, liveness) -> Step       what the coordinator does now, and why
    next_step.side_steps(snapshot, liveness)              besides that: bulk sessions to close, CDC to publish
    request_queue.objections_to_submit(...)               why a request should be refused at once
    node_states.NODE_TABLE, tablet_stages.STAGES          barrier, action, session, next, on failure, promise
    token_allocation.choose_tokens(snapshot, node)        tokens of a new node; every leader computes the same ones

Serving

    routing/replica_sets.py                               replicas of a token, for reads and for writes
    routing/sharder.py, sessions.py, cdc_generations.py, resize.py

A row with a barrier is left by a command that names, as `fence`, the version whose barrier every node acknowledged;
`apply` refuses it otherwise. A node that was ignored and returns drops the tablets it is no longer a replica of before
it serves, because stages did not wait for it. It can return only when no running move involves it.

For people: `python -m ebla.topology.draw` and `python -m ebla.topology.explain`.
"""

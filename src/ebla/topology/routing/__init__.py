"""From (snapshot, table, token) to replicas and shards."""

"""The data processes of a node, its shards."""

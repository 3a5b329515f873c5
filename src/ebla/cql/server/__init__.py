"""The native protocol on a shard: listener, connections, login, events."""

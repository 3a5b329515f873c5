"""CQL: the language and the native protocol, served by the shards."""

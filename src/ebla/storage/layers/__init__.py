"""One sorted store: the contract, RocksDB, and the in-memory engine."""

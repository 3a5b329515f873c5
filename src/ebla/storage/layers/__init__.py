"""Layers: the contract, the RocksDB engine, the in-memory engine, the cache of open layers."""

"""Compaction: which layers, which tombstones may go, and the work itself."""

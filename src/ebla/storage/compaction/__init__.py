"""Which layers are merged, and what a compaction may drop."""

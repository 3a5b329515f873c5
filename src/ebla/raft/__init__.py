"""A pure Raft core: events in by step, effects out by take."""

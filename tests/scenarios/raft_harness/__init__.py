"""Replays data-driven Raft transcripts, recorded elsewhere or our own, against the core."""

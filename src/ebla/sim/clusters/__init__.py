"""Whole simulated clusters, one kind per file."""

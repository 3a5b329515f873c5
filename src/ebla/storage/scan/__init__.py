"""Scans of checkpoints as Arrow: filters, visible rows, hashes of token ranges."""

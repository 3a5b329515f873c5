"""Measurements. Each prints a ratio against a peer or a limit in the same run."""

"""Protocols for time, randomness, network and disk."""

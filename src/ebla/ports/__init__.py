"""Protocols through which time, chance, network and disk come in."""

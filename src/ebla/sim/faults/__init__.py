"""Faults: each strikes, lasts for a random time and heals."""

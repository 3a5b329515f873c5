"""Judges of histories and of states."""

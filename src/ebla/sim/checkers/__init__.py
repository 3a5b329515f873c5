"""Checkers of histories and of states."""

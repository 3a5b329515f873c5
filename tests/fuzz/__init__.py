"""Hostile statements: a corpus for every run of the tests, and random mutations of it for as long as you like."""

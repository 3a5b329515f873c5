"""Offline inspection of layers for the command line: find, verify, dump."""

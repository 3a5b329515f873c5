"""Bytes of keys, rows, row files and staging folders, one at a time."""

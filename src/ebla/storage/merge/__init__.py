"""Merging: values of one key, chunks of layers, runs of staged rows."""

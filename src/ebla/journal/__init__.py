"""Durable bytes over the disk port: a segmented log, and files replaced whole."""

"""Rows as Arrow columns."""

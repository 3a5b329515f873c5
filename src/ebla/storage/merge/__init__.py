"""Merging rows of several layers or runs."""

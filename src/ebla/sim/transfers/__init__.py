"""Simulated Spark and Flight."""

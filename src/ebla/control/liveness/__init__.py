"""Heartbeats and the failure detector."""

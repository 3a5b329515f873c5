"""Clients that put load on a simulated system."""

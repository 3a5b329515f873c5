"""Deliberate bugs, applied from outside, each with the check that must catch it. How to write one: `framework.py`."""

"""Faults: each strikes, holds for a drawn time and heals."""

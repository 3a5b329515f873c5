"""Statements compiled against a schema into plans that execute with bound values."""

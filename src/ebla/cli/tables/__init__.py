"""Commands for tables and rows."""

"""CQL text to statements."""

"""Keys and rows as bytes."""

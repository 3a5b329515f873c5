"""The control process: thin shells that act on what the pure packages decide."""

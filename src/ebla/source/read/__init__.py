"""The read side of `format("ebla")`."""

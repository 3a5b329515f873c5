"""The write side of `format("ebla")`."""

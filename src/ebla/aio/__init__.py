"""Tools on top of asyncio."""

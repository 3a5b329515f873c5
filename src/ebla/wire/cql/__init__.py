"""The frame codec of the CQL native protocol, for server and client."""

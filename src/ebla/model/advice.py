"""What an operator does about a node whose folder cannot be used. In one place: every message that gives this advice
takes it from here."""

from ebla.model.identity import HostId

RESET_NODE_ADVICE = "empty its folder with `ebla reset-node FOLDER` and start it again: it then joins as a new host"


def replace_node_advice(host: HostId | None = None) -> str:
    """Never to restore the folder, or a part of it, from a copy: a copy lacks what the node has acknowledged since."""
    who = "this node" if host is None else f"host {host}"
    return f"remove {who} on another node (ebla group0 remove) and start this machine with an empty folder"

"""Socket helpers of the transport: listening sockets, TCP options, and readable error texts."""

import errno
import os
import socket
import ssl
import stat
import struct

from ebla.model.errors import InvalidRequest
from ebla.model.identity import Address

_CREDENTIALS = struct.Struct("3i")


def reason_of(error: BaseException) -> str:
    """The text of an error without error numbers and source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS: {error.reason.lower().replace('_', ' ')}"
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def tune_tcp(sock: socket.socket | None, unacknowledged_ms: int) -> None:
    """Frames are sent at once, and a peer that vanished ends the connection, also an idle one: a lane without requests
    would otherwise swallow one-way messages for hours."""
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, unacknowledged_ms // 2000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, unacknowledged_ms // 4000))


def listen_tcp(address: Address, backlog: int, *, shared: bool = False) -> socket.socket:
    """`shared`: other processes of this user may listen there as well, and the kernel distributes the connections."""
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address.host, address.port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise InvalidRequest(f"cannot listen on {address}: {reason_of(error)}") from None
    listener.setblocking(False)
    return listener


def listen_local(address: Address, backlog: int) -> socket.socket:
    """The folder keeps other users out before the socket's mode is set; a folder open to others is refused."""
    path = address.host
    folder = os.stat(os.path.dirname(path))
    if stat.S_IMODE(folder.st_mode) & 0o077 or folder.st_uid != os.getuid():
        raise InvalidRequest(f"{os.path.dirname(path)} must belong to this user and be closed to others (0700)")
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_dead_socket(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise InvalidRequest(f"cannot listen on {path}: {reason_of(error)}") from None
    listener.setblocking(False)
    return listener


def _remove_dead_socket(path: str) -> None:
    """The socket of a dead process remains as a file; one that accepts a connection is in use."""
    if not os.path.exists(path):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def is_same_user(accepted: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder's mode has to be enough
    _, user, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())

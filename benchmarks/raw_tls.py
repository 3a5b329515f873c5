"""The same bytes by one plain TLS stream, from files to files: the lower bound for a copy between two nodes.

    python -m benchmarks.raw_tls sink TLS_FOLDER ADDRESS PORT FILE     (started by the benchmark itself)

One thread on either side, OpenSSL through Python, as much per call as it accepts. The receiver writes to a file and
does not sync it; the sender reads from files that are in the page cache.
"""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PIECE_BYTES = 1 << 20


def raw_tls_s(tls_folder: Path, address: str, files: Sequence[Path], sink_file: Path) -> float:
    """From the first byte sent until the receiver reports that it has written the last."""
    command = [sys.executable, "-m", "benchmarks.raw_tls", "sink", str(tls_folder), address, str(sink_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink:
        assert sink.stdout is not None
        port = int(sink.stdout.readline())
        context = ssl.create_default_context(cafile=str(tls_folder / "authority.pem"))
        context.check_hostname = False
        context.load_cert_chain(str(tls_folder / "node.pem"), str(tls_folder / "node.key"))
        with socket.create_connection((address, port)) as plain, context.wrap_socket(plain) as stream:
            began = time.perf_counter()
            for path in files:
                with path.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        stream.sendall(piece)
            stream.shutdown(socket.SHUT_WR)
            assert sink.stdout.readline() == "done\n"
            return time.perf_counter() - began


def _sink(tls_folder: Path, address: str, path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(tls_folder / "node.pem"), str(tls_folder / "node.key"))
    with socket.create_server((address, 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        plain, _ = listening.accept()
        room = bytearray(PIECE_BYTES)
        with context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=True) as stream, path.open("wb") as file:
            while count := stream.recv_into(room):
                file.write(memoryview(room)[:count])
    print("done", flush=True)
    path.unlink()


if __name__ == "__main__":
    _sink(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))

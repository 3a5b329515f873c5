"""The limits of the disk, measured beside a benchmark: other figures are divided by them.

`python -m benchmarks.disk_limit [FOLDER]` prints the raw sync rate and what a batch costs to encode.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ebla.journal.frames import encode_frame

RECORD_BYTES = 200
FILE_BYTES = 16 << 20


def measure_sync_rate(folder: Path | str, *, seconds: float = 1.0, record_bytes: int = RECORD_BYTES) -> float:
    """Syncs per second: a bare loop of one small write and one fdatasync in a preallocated file."""
    path = os.path.join(folder, "sync-rate")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.fsync(descriptor)
        record = os.urandom(record_bytes)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(descriptor, record, count * record_bytes % (FILE_BYTES - record_bytes))
            os.fdatasync(descriptor)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        os.unlink(path)


def measure_encoding(records_per_batch: int = 256) -> float:
    """CPU microseconds per record of one batch's frame."""
    records = [os.urandom(RECORD_BYTES) for _ in range(records_per_batch)]
    rounds = 500
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for number in range(rounds):
            encode_frame(1, 32, number, records)
        best = min(best, time.process_time() - began)
    return best / rounds / records_per_batch * 1e6


def main(folder: str) -> None:
    # More than once: on a shared disk the rate varies from second to second.
    rates = [measure_sync_rate(folder) for _ in range(4)]
    encoding_us = measure_encoding()
    print(f"raw syncs per second: {', '.join(f'{rate:.0f}' for rate in rates)}")
    print(f"encoding a batch of 256: {encoding_us:.2f} µs per record")
    print(
        json.dumps(
            {"raw_syncs_per_s": round(statistics.median(rates), 1), "encode_us_per_record": round(encoding_us, 3)}
        )
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as scratch:
        main(scratch)

"""CPU and memory of the index of keys that compaction by key uses.

    python -m bench.key_index [--records 100000000] [--keys 10000000] [--memory-mib 256] [--json FILE]

It adds records with random keys of 8 bytes in blocks of 64 Ki, like row groups. Then it looks up all keys in blocks of
1 Mi, and counts the records that stay: one per distinct key. Peak memory is the increase over the start, and includes
the blocks.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compactor.by_key.keyed_index import KeyIndex

MIB = 1 << 20
ADDED, LOOKED_UP = 1 << 16, 1 << 20
SECRET = bytes(range(16))


def blocks(records: int, keys: int, size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield key numbers, keys and offsets in blocks. The numbers do not depend on the size of a block."""
    for first in range(0, records, size):
        offsets = np.arange(first, min(first + size, records), dtype=np.int64)
        # Knuth's multiplicative hash, twice: random enough, and the same in both passes.
        mixed = offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (mixed ^ (mixed >> np.uint64(27))) % np.uint64(keys)
        starts = np.arange(0, 8 * len(numbers) + 1, 8, dtype=np.int32)
        buffers = [None, pa.py_buffer(starts), pa.py_buffer(numbers)]
        yield numbers, pa.Array.from_buffers(pa.binary(), len(numbers), buffers, null_count=0), offsets


def peak_mib() -> float:
    """Return the highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(records: int, keys: int, memory_bytes: int) -> dict[str, float]:
    """Run once. Raises AssertionError if the index keeps a record other than the newest of each key."""
    with KeyIndex(1, memory_bytes=MIB, secret=SECRET) as warm:
        warm.hashes(pa.array([b"k"], pa.binary()))
    before = peak_mib()
    drawn = np.zeros(keys, bool)
    begun = time.process_time()
    with KeyIndex(records, memory_bytes=memory_bytes, secret=SECRET) as index:
        for numbers, some, offsets in blocks(records, keys, ADDED):
            index.add(some, offsets)
            drawn[numbers] = True
        added = time.process_time()
        added_peak = peak_mib()
        stay = 0
        for _, some, offsets in blocks(records, keys, LOOKED_UP):
            stay += int((index.find(index.hashes(some)) == offsets).sum())
        ended = time.process_time()
        spilled = index.spilled_bytes
    assert stay == drawn.sum(), f"{stay} records stay of {drawn.sum()} keys"
    return {
        "records": records,
        "keys": keys,
        "memory_mib": memory_bytes / MIB,
        "add_cpu_s": round(added - begun, 2),
        "find_cpu_s": round(ended - added, 2),
        "add_peak_mib": round(added_peak - before, 1),
        "peak_mib": round(peak_mib() - before, 1),
        "spilled_mib": round(spilled / MIB, 1),
    }


def main() -> None:
    """Print the figures, and write them to the file of --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--memory-mib", type=int, default=256)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    figures = measure(asked.records, asked.keys, asked.memory_mib * MIB)
    print(json.dumps(figures, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

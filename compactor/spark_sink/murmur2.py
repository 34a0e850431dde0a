"""Kafka's hash of keys (org.apache.kafka.common.utils.Utils.murmur2) for a whole column."""

# mypy: ignore-errors
# numba compiles this function from its bytecode; its decorator carries no types.

from __future__ import annotations

import numpy as np
from numba import njit

_SEED = 0x9747B28C
_M = 0x5BD1E995


@njit(cache=True, nogil=True)
def murmur2(offsets, data, hashes):
    """Fill `hashes` (uint32) with the hash of each value: data[offsets[i]:offsets[i + 1]]."""
    mask = np.uint64(0xFFFFFFFF)
    m = np.uint64(_M)
    for row in range(hashes.shape[0]):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        h = np.uint64(_SEED) ^ np.uint64(end - at)
        while end - at >= 4:
            k = (
                np.uint64(data[at])
                | np.uint64(data[at + 1]) << np.uint64(8)
                | np.uint64(data[at + 2]) << np.uint64(16)
                | np.uint64(data[at + 3]) << np.uint64(24)
            )
            k = (k * m) & mask
            k ^= k >> np.uint64(24)
            h = ((h * m) & mask) ^ ((k * m) & mask)
            at += 4
        if at < end:
            for byte in range(end - at):
                h ^= np.uint64(data[at + byte]) << np.uint64(8 * byte)
            h = (h * m) & mask
        h ^= h >> np.uint64(13)
        h = (h * m) & mask
        hashes[row] = h ^ (h >> np.uint64(15))

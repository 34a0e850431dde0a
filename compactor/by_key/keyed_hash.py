"""SipHash-2-4 with 128 bits of output, for many keys at once.

Two keys with the same hash would count as one, and a value would be lost. So the hash has 128 bits (a collision among
10 million keys has a probability of 1e-25). Each index has its own secret, so that nobody can choose colliding keys.
Reference: Aumasson, Bernstein, "SipHash: a fast short-input PRF"; the tests have its test vectors.
"""

# mypy: ignore-errors
# numba compiles these functions from their bytecode; its decorators carry no types.

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def _rotated(value, bits):
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _rounds(v0, v1, v2, v3, count):
    for _ in range(count):
        v0 += v1
        v1 = _rotated(v1, 13) ^ v0
        v0 = _rotated(v0, 32)
        v2 += v3
        v3 = _rotated(v3, 16) ^ v2
        v0 += v3
        v3 = _rotated(v3, 21) ^ v0
        v2 += v1
        v1 = _rotated(v1, 17) ^ v2
        v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@njit(cache=True, nogil=True, error_model="numpy")
def hash_keys(offsets, data, secret, hashes):
    """Write the hash of key i, data[offsets[i]:offsets[i + 1]], to hashes[i, 0] and hashes[i, 1].

    `secret`: two unsigned 64-bit numbers.
    """
    for row in range(offsets.shape[0] - 1):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        size = end - at
        v0 = np.uint64(0x736F6D6570736575) ^ secret[0]
        v1 = np.uint64(0x646F72616E646F6D) ^ secret[1] ^ np.uint64(0xEE)
        v2 = np.uint64(0x6C7967656E657261) ^ secret[0]
        v3 = np.uint64(0x7465646279746573) ^ secret[1]
        while end - at >= 8:
            word = np.uint64(0)
            for index in range(8):
                word |= np.uint64(data[at + index]) << np.uint64(8 * index)
            v0, v1, v2, v3 = _rounds(v0, v1, v2, v3 ^ word, 2)
            v0 ^= word
            at += 8
        word = np.uint64(size & 0xFF) << np.uint64(56)
        for index in range(end - at):
            word |= np.uint64(data[at + index]) << np.uint64(8 * index)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2 ^ np.uint64(0xEE), v3, 4)
        hashes[row, 0] = v0 ^ v1 ^ v2 ^ v3
        v0, v1, v2, v3 = _rounds(v0, v1 ^ np.uint64(0xDD), v2, v3, 4)
        hashes[row, 1] = v0 ^ v1 ^ v2 ^ v3

"""Decides whether a row group may contain a key, from key bounds and Bloom filters, a small part of the object.

Each row group has a split block Bloom filter of its keys: blocks of eight 32-bit words. A key's hash (XXH64) selects a
block and one bit in each of its words. If a bit is not set, the row group does not contain the key. So a look-up needs
32 bytes per row group. https://github.com/apache/parquet-format/blob/master/BloomFilter.md,
https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md

No I/O: `key_filter` says which bytes to fetch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.read import ParquetIndex
from tailrace.parquet_object.schema import SCHEMA

Array = Any

BLOCK_BYTES = 32
_KEY_COLUMN = SCHEMA.get_field_index("key")
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31],
    np.uint32,
)
_MASK = (1 << 64) - 1
_PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The Bloom filter of a row group's keys: `blocks` blocks from byte `start` of the object."""

    start: int
    blocks: int

    def places(self, hashes: Array) -> Array:
        """Return the byte of the object at which each key's block starts."""
        chosen = ((hashes >> np.uint64(32)) * np.uint64(self.blocks)) >> np.uint64(32)
        return self.start + BLOCK_BYTES * chosen.astype(np.int64)


def key_filter(index: ParquetIndex, row_group: int) -> KeyFilter | None:
    """Locate the row group's filter; None in an object that was written without filters. Raises
    InvalidParquetObject."""
    column = index.metadata.row_group(row_group).column(_KEY_COLUMN)
    start, length = column.bloom_filter_offset, column.bloom_filter_length
    if start is None or length is None:
        return None
    # A header of less than 32 bytes precedes the bits, whose size is a power of two.
    size = 1 << (int(length).bit_length() - 1) if length > 0 else 0
    if size < BLOCK_BYTES or not 0 <= start <= start + length <= index.size:
        raise InvalidParquetObject(f"row group {row_group}: a bloom filter of {length} bytes at {start}")
    return KeyFilter(start + length - size, size // BLOCK_BYTES)


def within_bounds(index: ParquetIndex, row_group: int, keys: Iterable[bytes]) -> Iterator[bool]:
    """Yield for each key whether it is between the row group's least and greatest key."""
    column = index.metadata.row_group(row_group).column(_KEY_COLUMN)
    bounds = column.statistics
    if bounds is None or not bounds.has_min_max:
        # Bounds of more than 4 KiB are not written.
        may_hold = bounds is None or not bounds.has_null_count or bounds.null_count < column.num_values
        yield from (may_hold for _ in keys)
    else:
        low, high = bounds.min, bounds.max
        yield from (low <= key <= high for key in keys)


def may_hold(blocks: Array, hashes: Array) -> Array:
    """Return for each key whether its block has all bits of its hash. `blocks`: 8 words of 32 bits per key."""
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    bits = np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))
    return ((blocks & bits) == bits).all(axis=1)


def key_hashes(keys: Iterable[bytes]) -> Array:
    """Return the XXH64 hash of each key, as the filters use it."""
    return np.array([_xxh64(key) for key in keys], np.uint64)


def _xxh64(data: bytes) -> int:
    first, second, third, fourth, fifth = _PRIMES
    size = len(data)
    at = 0
    if size >= 32:
        lanes = [(first + second) & _MASK, second, 0, -first & _MASK]
        while at + 32 <= size:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        state = sum(_rotated(lane, bits) for lane, bits in turns) & _MASK
        for lane in lanes:
            state = ((state ^ _round(0, lane)) * first + fourth) & _MASK
    else:
        state = fifth
    state = (state + size) & _MASK
    while at + 8 <= size:
        (word,) = struct.unpack_from("<Q", data, at)
        state = (_rotated(state ^ _round(0, word), 27) * first + fourth) & _MASK
        at += 8
    if at + 4 <= size:
        (word,) = struct.unpack_from("<I", data, at)
        state = (_rotated(state ^ (word * first & _MASK), 23) * second + third) & _MASK
        at += 4
    for byte in data[at:]:
        state = (_rotated(state ^ (byte * fifth & _MASK), 11) * first) & _MASK
    state = ((state ^ (state >> 33)) * second) & _MASK
    state = ((state ^ (state >> 29)) * third) & _MASK
    return state ^ (state >> 32)


def _round(lane: int, word: int) -> int:
    return (_rotated((lane + word * _PRIMES[1]) & _MASK, 31) * _PRIMES[0]) & _MASK


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK

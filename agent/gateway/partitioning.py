"""Chooses a record's partition as Java's producer does: by murmur2 of its key; records without a key that arrive
together get the same one. Pure.
"""

from __future__ import annotations

from struct import iter_unpack

from tailrace.turns import Steps

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
STEP_BYTES = 8 * 1024
"""Bytes of a key hashed in one step, in about a millisecond."""


def murmur2(key: bytes) -> Steps[int]:
    """Return Kafka's hash of a key (org.apache.kafka.common.utils.Utils), as an unsigned number, in steps of bytes."""
    whole = len(key) & ~3
    hashed = _SEED ^ len(key)
    for start in range(0, whole, STEP_BYTES):
        end = min(start + STEP_BYTES, whole)
        yield end - start
        for (part,) in iter_unpack("<I", key[start:end]):
            part = part * _M & _MASK
            hashed = (hashed * _M & _MASK) ^ ((part ^ part >> 24) * _M & _MASK)
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_of(given: int | None, key: bytes | None, count: int, keyless: int) -> Steps[int]:
    """Return a partition below `count`: the given one, the key's, or without a key the one for `keyless`."""
    if given is not None:
        return given
    return (keyless if key is None else (yield from murmur2(key)) & 0x7FFFFFFF) % count

"""Chooses a record's partition as Java's producer does: by murmur2 of its key; records without a key that arrive
together get the same one. Pure.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key (org.apache.kafka.common.utils.Utils), as an unsigned number."""
    whole = len(key) & ~3
    hashed = _SEED ^ len(key)
    for at in range(0, whole, 4):
        part = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ ((part ^ part >> 24) * _M & _MASK)
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_of(given: int | None, key: bytes | None, count: int, keyless: int) -> int:
    """Return a partition below `count`: the given one, the key's, or without a key the one for `keyless`."""
    if given is not None:
        return given
    return (keyless if key is None else murmur2(key) & 0x7FFFFFFF) % count

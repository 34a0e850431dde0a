"""Seeded mutations of valid inputs: what a corrupt disk, a broken client or a hostile one does to bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

MAX_INPUT_BYTES = 64 << 10

_NUMBERS = (0, 1, 2, 7, 8, 15, 16, 31, 32, 61, 127, 128, 129, 255, 256, 1023, 4096, 32767, 32768, 65535)
_EDGES = (2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0xC0, 0xC1, 0xDC, 0xDD, 0xDE, 0xDF, 0xC6, 0xDB, 0x91, 0x81, 0xFE)
_VARINTS = (
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x00",
    b"\xff" * 9 + b"\x01",
    b"\x80" * 12,
    b"\xfe\xff\xff\xff\x0f",
    b"\x80\x80\x04",
)
_NESTS = (b"\x91", b"\x81\xa0", b"\xdc\x00\x01", b"\x92\xc0")


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """One to six mutations of `data`, some with pieces of `others`. At most MAX_INPUT_BYTES."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        _MUTATIONS[rng.randrange(len(_MUTATIONS))](out, others, rng)
    return bytes(out[:MAX_INPUT_BYTES])


def _place(out: bytearray, rng: random.Random) -> int:
    return rng.randrange(len(out) + 1) if rng.random() < 0.7 else min(rng.randrange(40), len(out))


def _flip(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    if out:
        at = rng.randrange(len(out))
        out[at] ^= 1 << rng.randrange(8)


def _set(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    out[at : at + 1] = bytes((rng.choice(_BYTES) if rng.random() < 0.6 else rng.randrange(256),))


def _number(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    width = rng.choice((1, 2, 2, 4, 4, 4, 8))
    number = rng.choice(_NUMBERS + _EDGES) if rng.random() < 0.8 else len(out) + rng.randrange(-8, 8)
    if rng.random() < 0.4:
        number = -number
    at = _place(out, rng)
    order = "big" if rng.random() < 0.85 else "little"
    out[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, order)  # type: ignore[arg-type]


def _step(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    if out:
        at = rng.randrange(len(out))
        out[at] = (out[at] + rng.choice((-2, -1, 1, 2, 128))) & 0xFF


def _varint(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    out[at : at + rng.randrange(3)] = rng.choice(_VARINTS)


def _cut(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    del out[_place(out, rng) :]


def _remove(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    del out[at : at + rng.choice((1, 2, 4, 8, rng.randrange(1, 65)))]


def _insert(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 32)))


def _repeat(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    piece = bytes(out[at : at + rng.randrange(1, 33)])
    out[at:at] = piece * rng.choice((1, 1, 2, 16, 200))


def _splice(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    other = rng.choice(others)
    if other:
        start = rng.randrange(len(other))
        at = _place(out, rng)
        out[at : at + rng.randrange(17)] = other[start : start + rng.randrange(1, 129)]


def _cross(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    other = rng.choice(others)
    at = _place(out, rng)
    out[at:] = other[min(at, len(other)) :]


def _nest(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    out[at:at] = rng.choice(_NESTS) * rng.choice((3, 60, 1100, 5000))


def _blank(out: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(out, rng)
    width = rng.randrange(1, 33)
    out[at : at + width] = bytes((rng.choice((0, 0xFF)),)) * min(width, len(out) - at)


_MUTATIONS = (
    _flip, _flip, _set, _set, _number, _number, _number, _step, _varint, _cut, _remove, _insert, _repeat,
    _splice, _splice, _cross, _nest, _blank,
)  # fmt: skip
